package collector

import "gdr_exporter/collector/diagnosis"

// Families of what communication libraries would do.
var (
	libraryNCCL = gauge("gdr_nccl_would_use_gdr",
		"1 if NCCL would use GPUDirect RDMA on the pair, to send and to receive, by its own rules and without any variable in the environment; 0 if it would stage in one direction at least. "+
			"rule is the first version of NCCL that decides so: 2.13, 2.23 (2.23.4) and, where the way is over NVLink-C2C and its answer can differ, 2.27; each holds up to the next one shown. "+
			"It is a decision by files and attributes, not whether a registration works. Absent where something that it hangs on is not known, as before the first measurement. Of expected pairs.")
	libraryUCX = gauge("gdr_ucx_would_use_gdr",
		"1 if UCX would use GPUDirect RDMA on the pair by its own rules and without any variable in the environment. Absent where that is not known. Of expected pairs.")
)

// showLibrary shows what libraries would do. What came before NCCL 2.13 is left
// out: no GPU that is sold today runs with it. What distinguishes 2.27
// is NVLink-C2C alone, so that elsewhere its series would repeat those of 2.23.
func showLibrary(p *page, d *diagnosis.Diagnosis) {
	for i := range d.Choices {
		c := &d.Choices[i]
		pair := pairs("gpu_address", c.GPU, "device", c.Device)
		switch {
		case c.Library == diagnosis.LibraryUCX:
			p.addBool(libraryUCX, c.Uses, pair)
		case c.Rule == "2.13", c.Rule == "2.23", c.Rule == "2.27" && overC2C(d, c):
			p.addBool(libraryNCCL, c.Uses, pair.with("rule", c.Rule))
		}
	}
}

// overC2C reports whether a choice is of a pair whose way is over NVLink-C2C.
func overC2C(d *diagnosis.Diagnosis, c *diagnosis.LibraryChoice) bool {
	for i := range d.Paths {
		if path := &d.Paths[i]; path.GPU == c.GPU && path.Device == c.Device {
			return path.Distance == "P2C"
		}
	}
	return false
}
