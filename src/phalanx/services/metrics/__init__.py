"""What the control plane does with stored metrics by itself: `folding` brings the roll-ups up to date."""
