"""Programs of a checkout that are no part of the package: training the demo pair, measurements for developers."""
