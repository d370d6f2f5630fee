"""Objects of stores, read in blocks through the node's disk: `StoreCache` has the options."""
