package collector

import "gdr_exporter/collector/snapshot"

// Families of processes. What is read of each of them is evidence for findings, and
// no metric: nothing per process is a label.
var (
	processVisible = gauge("gdr_process_visible",
		"1 if the exporter is in the host's PID namespace, so that processes can be told by their ids; 0: none can be looked at.")
	processJobs = gauge("gdr_process_jobs",
		"Processes that use a GPU and an RDMA device, the exporter's own aside. No series unless it is known who uses both.")
)

// showProcess shows that processes are looked at.
func showProcess(p *page, s *snapshot.Snapshot) {
	r := s.ProcessState()
	if r == nil {
		return
	}
	addMaybe(p, processVisible, r.Visible, nil)
	if r.Joined {
		p.add(processJobs, float64(len(r.Jobs)+r.Omitted), nil)
	}
}
