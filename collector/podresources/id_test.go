package podresources

import (
	"regexp"
	"strings"
	"testing"

	"gdr_exporter/collector/sysread"
)

const (
	testGPU = "GPU-8d5b8f4c-1111-2222-3333-444455556666"
	testMIG = "MIG-0a1b2c3d-aaaa-bbbb-cccc-ddddeeeeffff"
)

func TestParsePlugin(t *testing.T) {
	for _, test := range []struct {
		resource, id string
		want         ID
	}{
		{"nvidia.com/gpu", testGPU, ID{Kind: KindGPU, Text: testGPU, GPU: testGPU}},
		{"nvidia.com/gpu.shared", testGPU + "::7", ID{Kind: KindGPU, Text: testGPU, GPU: testGPU}},
		{"nvidia.com/mig-1g.10gb", testMIG, ID{Kind: KindGPU, Text: testMIG, MIG: testMIG}},
		{"nvidia.com/mig-1g.10gb.shared", testMIG + "::0", ID{Kind: KindGPU, Text: testMIG, MIG: testMIG}},
		{"nvidia.com/gpu", "MIG-" + testGPU + "/3/0", ID{Kind: KindGPU, Text: "MIG-" + testGPU + "/3/0", GPU: testGPU, MIG: "MIG-" + testGPU + "/3/0"}},
		{"nvidia.com/gpu", "nvidia3", ID{Kind: KindGPU, Text: "nvidia3", Minor: sysread.Some(3)}},
		{"nvidia.com/gpu", "nvidia0/gi2/vgpu1", ID{Kind: KindGPU, Text: "nvidia0/gi2", Minor: sysread.Some(0)}},
		{"nvidia.com/gpu", "nvidia1/vgpu0", ID{Kind: KindGPU, Text: "nvidia1", Minor: sysread.Some(1)}},
		{"nvidia.com/mlnx_sriov", "0000:3b:00.4", ID{Kind: KindPCI, Text: "0000:3b:00.4", Address: "0000:3b:00.4"}},
		{"nvidia.com/GH100_H100", "00000000:1B:00.0", ID{Kind: KindPCI, Text: "0000:1b:00.0", Address: "0000:1b:00.0"}},
		{"rdma/hca_shared_devices_a", "63", ID{Kind: KindRDMA}},
		{"nvidia.com/rdma_ib", "mlx5_4", ID{Kind: KindRDMA, Text: "mlx5_4"}},
		{"example.com/RDMA", "mlx5_core.sf.4", ID{Kind: KindRDMA, Text: "mlx5_core.sf.4"}},
	} {
		if got, ok := parsePlugin(test.resource, test.id); !ok || got != test.want {
			t.Errorf("%s %s: %+v, %v", test.resource, test.id, got, ok)
		}
	}
	for _, test := range [][2]string{
		{"devices.kubevirt.io/kvm", "kvm12"}, {"cpu", "3"}, {"nvidia.com/gpu", "GPU-not-a-uuid"}, {"amd.com/gpu", "card0"},
		{"nvidia.com/gpu", ""}, {"nvidia.com/gpu", "nvidia"}, {"nvidia.com/gpu", "nvidia99999"}, {"x/y", "0000:3b:20.0"}, {"x/y", "0000:3b:00.8"},
	} {
		if got, ok := parsePlugin(test[0], test[1]); ok {
			t.Errorf("%q: %+v", test, got)
		}
	}
}

func TestParseDynamic(t *testing.T) {
	for _, test := range []struct {
		driver, device string
		cdi            []string
		want           ID
	}{
		{"gpu.nvidia.com", "gpu-2", []string{"k8s.gpu.nvidia.com/claim=cdi-gpu-2"}, ID{Kind: KindGPU, Text: "gpu-2", Minor: sysread.Some(2)}},
		{"gpu.nvidia.com", "gpu-2-mig-19-4-1", nil, ID{Kind: KindGPU, Text: "gpu-2-mig-19-4-1", Minor: sysread.Some(2)}},
		{"gpu.nvidia.com", "gpu-2", []string{"", "x", "nvidia.com/gpu=" + testGPU}, ID{Kind: KindGPU, Text: testGPU, GPU: testGPU}},
		{"gpu.nvidia.com", "gpu-vfio-0", nil, ID{Kind: KindGPU, Text: "gpu-vfio-0"}},
		{"sriovnetwork.k8snetworkplumbingwg.io", "0000-3b-00-4", nil, ID{Kind: KindPCI, Text: "0000:3b:00.4", Address: "0000:3b:00.4"}},
		{"dra.net", "pci-0000-3b-00-0", nil, ID{Kind: KindPCI, Text: "0000:3b:00.0", Address: "0000:3b:00.0"}},
		{"rdma.example.com", "mlx5-4", nil, ID{Kind: KindRDMA, Text: "mlx5-4"}},
	} {
		if got, ok := parseDynamic(test.driver, test.device, test.cdi); !ok || got != test.want {
			t.Errorf("%s %s: %+v, %v", test.driver, test.device, got, ok)
		}
	}
	for _, test := range [][2]string{{"compute-domain.nvidia.com", "channel-0"}, {"gpu.nvidia.com", ""}, {"dra.net", "eth1"}} {
		if got, ok := parseDynamic(test[0], test[1], nil); ok {
			t.Errorf("%q: %+v", test, got)
		}
	}
}

// FuzzID: whatever an id is, what comes of it is of a form that may be looked up.
func FuzzID(f *testing.F) {
	f.Add("nvidia.com/gpu", testGPU+"::3", "nvidia.com/gpu="+testGPU)
	f.Add("rdma/hca", "12", "")
	f.Add("gpu.nvidia.com", "gpu-3-mig-1-2-3", "=")
	f.Add("dra.net", "pci-0000-3b-00-0", "x=00000000:3B:00.0")
	address := regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	f.Fuzz(func(t *testing.T, resource, id, cdi string) {
		plugin, isPlugin := parsePlugin(resource, id)
		dynamic, isDynamic := parseDynamic(resource, id, []string{cdi})
		for _, got := range []struct {
			ID
			ok bool
		}{{plugin, isPlugin}, {dynamic, isDynamic}} {
			switch {
			case !got.ok && got.ID != ID{} && got.Kind != KindRDMA && got.Kind != KindGPU,
				got.ok && got.Kind == "",
				got.Kind == KindPCI != (got.Address != ""),
				got.Address != "" && !address.MatchString(got.Address),
				got.GPU != "" && !gpuUUID.MatchString(got.GPU),
				got.MIG != "" && !strings.HasPrefix(got.MIG, "MIG-"),
				got.Minor.Known && (got.Minor.Value < 0 || got.Minor.Value > 9999):
				t.Errorf("%q %q %q: %+v", resource, id, cdi, got)
			}
		}
	})
}
