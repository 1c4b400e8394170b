"""The tuning lab: what another budget would give, sweeps over settings, one setting against another."""
