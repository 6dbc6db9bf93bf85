"""Where inputs live: a box, perhaps cut by linear constraints, perhaps seen through data normalisation."""
