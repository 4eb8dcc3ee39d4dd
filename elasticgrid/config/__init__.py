"""The files people write: jobs, grids and settings, in plain units, read into the values of `elasticgrid.core.spec`."""
