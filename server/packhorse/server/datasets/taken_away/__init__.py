"""What files take away from the datasets and mixtures that are served, and ids in these files that no dataset has."""
