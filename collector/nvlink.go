package collector

import "gdr_exporter/collector/snapshot"

// showNVLink shows the NVLinks.
func showNVLink(*page, *snapshot.Snapshot) {}
