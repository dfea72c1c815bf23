"""What drafting costs and gains on a machine: probes, the cost model, tuning, the roofline."""
