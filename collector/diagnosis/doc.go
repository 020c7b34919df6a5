// Package diagnosis says what a Snapshot means: per pair of GPU and RDMA device
// whether GPUDirect RDMA works, how sure that is and why; and which findings
// there are, by rules that are data. It reads nothing and knows no clock: the
// same Snapshots give the same Diagnosis.
//
// A rule whose evidence could not be read is not judged, and says what is
// missing. What is normal somewhere is never a finding.
package diagnosis
