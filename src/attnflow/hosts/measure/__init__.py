"""What is measured beside the weights: gradients, blocks taken apart, values zeroed."""
