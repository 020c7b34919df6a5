package collector

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"gdr_exporter/rdma"
)

var metricName = regexp.MustCompile(`^[a-z_][a-z0-9_]*$`)

func TestNames(t *testing.T) {
	for _, c := range []struct {
		source      rdma.Source
		file        string
		name, label string
	}{
		{rdma.SourceCounters, "port_rcv_data", "gdr_rdma_port_rcv_data_bytes_total", ""},
		{rdma.SourceCounters, "VL15_dropped", "gdr_rdma_port_vl15_dropped_total", ""},
		{rdma.SourceCounters, "link_downed", "gdr_rdma_port_link_downed_total", ""},
		{rdma.SourceCountersExt, "port_rcv_data_64", "gdr_rdma_port_ext_rcv_data_64_bytes_total", ""},
		{rdma.SourceHW, "link_downed", "gdr_rdma_port_hw_link_downed_total", ""},
		{rdma.SourceHW, "np_cnp_sent", "gdr_rdma_port_hw_np_cnp_sent_total", ""},
		{rdma.SourceHW, "rx_bytes", "gdr_rdma_port_hw_rx_bytes_total", ""},
		{rdma.SourceHW, "ip4InOctets", "gdr_rdma_port_hw_ip4inoctets_bytes_total", "ip4InOctets"},
		{rdma.SourceHW, "lifespan", "gdr_rdma_port_hw_lifespan_seconds", ""},
		{rdma.SourceHW, "active_qps", "gdr_rdma_port_hw_active_qps", ""},
		{rdma.SourceHW, "RNR sent", "gdr_rdma_port_hw_rnr_sent_total", "RNR sent"},
		{rdma.SourceDeviceHW, "SwLinkUp,32", "gdr_rdma_device_hw_swlinkup_32_total", "SwLinkUp,32"},
		{rdma.SourceHW, "brand_new", "gdr_rdma_port_hw_brand_new_total", ""},
		{rdma.SourceCounters, "port_brand_new", "gdr_rdma_port_brand_new_total", "port_brand_new"},
		// Names that would run into another family.
		{rdma.SourceCounters, "receive_bytes", "gdr_rdma_port_file_receive_bytes_total", "receive_bytes"},
		{rdma.SourceCounters, "hw_link_downed", "gdr_rdma_port_file_hw_link_downed_total", "hw_link_downed"},
		{rdma.SourceCounters, "rcv_data_bytes", "gdr_rdma_port_file_rcv_data_bytes_total", "rcv_data_bytes"},
		{rdma.SourceHW, "np_cnp_sent_total", "gdr_rdma_port_hw_file_np_cnp_sent_total", "np_cnp_sent_total"},
	} {
		if named := nameOf(rdma.Info(c.source, c.file)); named.name != c.name || named.label != c.label {
			t.Errorf("%s/%s is %s with label %q, want %s with %q", c.source, c.file, named.name, named.label, c.name, c.label)
		}
	}
}

// FuzzNames looks for file names that make an invalid or ambiguous page: two
// files of one directory must never give the same series, nor one family two
// types or two helps.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"SDMAInt1,32\nSDMAInt1 32\nSDMAInt1_32\nsdmaint1_32", "port_x\nx\nX\nx_total", "ünï\nuni", "receive_bytes\nhw_x\next_x\nport_rcv_data\nrcv_data_bytes", "file_a\na"} {
		f.Add(seed)
	}
	for _, info := range rdma.Infos() {
		f.Add(info.File + "\n" + strings.ToUpper(info.File) + "\n" + info.File + "_total\nport_" + info.File)
	}
	f.Fuzz(func(t *testing.T, text string) {
		checkNames(t, strings.Split(text, "\n"))
	})
}

func checkNames(t *testing.T, files []string) {
	seen := map[string]string{}
	families := map[string]*family{}
	names := newNamer()
	for _, source := range []rdma.Source{rdma.SourceCounters, rdma.SourceCountersExt, rdma.SourceHW, rdma.SourceDeviceHW} {
		unique := map[string]bool{}
		for _, file := range files {
			if file == "" || unique[file] || len(file) > 255 {
				continue
			}
			unique[file] = true
			info := rdma.Info(source, file)
			named := nameOf(info)
			if !metricName.MatchString(named.name) || declared[named.name] != nil {
				t.Errorf("%s/%q gives family %q", source, file, named.name)
			}
			key := named.name + "{" + printable(named.label) + "}"
			if other := seen[key]; other != "" {
				t.Errorf("%s/%q and %s give the same series %s", source, file, other, key)
			}
			seen[key] = fmt.Sprintf("%s/%q", source, file)
			checkFamily(t, families, names.family(info).family, named.family)
		}
	}
}

// checkFamily compares what the namer interned with what the name alone gives:
// the first file seen must not decide the help or type of the others.
func checkFamily(t *testing.T, families map[string]*family, interned, alone *family) {
	if interned.kind != alone.kind || interned.help != alone.help {
		t.Errorf("%s: help or type depend on which other files exist:\n%q\n%q", alone.name, interned.help, alone.help)
	}
	if other := families[alone.name]; other != nil && other != interned {
		t.Errorf("%s is two families", alone.name)
	}
	families[alone.name] = interned
}

func TestPrintableKeepsTextsApart(t *testing.T) {
	seen := map[string]string{}
	for _, text := range []string{"a", `\x01`, "\x01", `\\x01`, "\xff", `\xff`, "ü", "\u00fc\x00", "\n", " "} {
		out := printable(text)
		if other, double := seen[out]; double {
			t.Errorf("%q and %q both become %q", text, other, out)
		}
		seen[out] = text
		for _, r := range out {
			if r < ' ' {
				t.Errorf("%q keeps a control character", text)
			}
		}
	}
}
