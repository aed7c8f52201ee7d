"""Groups of consumers that divide partitions: hundreds of members, thousands of partitions."""
