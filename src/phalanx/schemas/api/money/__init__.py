"""Bodies about anomalies of cost, and about bills of cloud providers."""
