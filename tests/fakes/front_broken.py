"""A front of a release that cannot even be read."""

raise SyntaxError("this release is broken")
