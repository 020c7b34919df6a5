package collector

import "gdr_exporter/collector/snapshot"

// showFabric shows the NVLink fabric.
func showFabric(*page, *snapshot.Snapshot) {}
