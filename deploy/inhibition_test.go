package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// alertmanager starts Alertmanager with the example and returns its address. It waits
// until it answers.
func alertmanager(t *testing.T) string {
	t.Helper()
	path := tool(t, "prometheus-alertmanager", "prometheus-alertmanager")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), path, "--config.file=alertmanager/alertmanager.yaml", "--storage.path="+t.TempDir(), "--web.listen-address="+address, "--cluster.listen-address=")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the test's context has ended it
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if _, err := ask(t, http.MethodGet, "http://"+address+"/-/ready", nil); err == nil {
			return "http://" + address
		}
	}
	t.Fatalf("Alertmanager does not answer (see below for a cause):\n%s", log.String())
	return ""
}

func ask(t *testing.T, method, url string, body []byte) ([]byte, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(response.Body)
	if closed := response.Body.Close(); err == nil {
		err = closed
	}
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, answer)
	}
	return answer, err
}

// notification is an alert as Alertmanager knows it.
type notification struct {
	Labels map[string]string `json:"labels"`
	Status struct {
		State string `json:"state"`
	} `json:"status"`
}

// alert makes the labels of "GDRPathDegraded node=n1 device=mlx5_0", with a cluster.
func alert(cluster, text string) map[string]string {
	name, rest, _ := strings.Cut(text, " ")
	labels := map[string]string{"alertname": name, "cluster": cluster}
	for _, pair := range strings.Fields(rest) {
		label, value, _ := strings.Cut(pair, "=")
		labels[label] = value
	}
	return labels
}

// post hands alerts of one cluster to Alertmanager.
func post(t *testing.T, base, cluster string, texts []string) {
	t.Helper()
	var alerts []notification
	for _, text := range texts {
		alerts = append(alerts, notification{Labels: alert(cluster, text)})
	}
	body, err := json.Marshal(alerts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, http.MethodPost, base+"/api/v2/alerts", body); err != nil {
		t.Fatal(err)
	}
}

// passed are what Alertmanager passes on of the alerts of one cluster, now; ready is
// false while it has not looked at all of them.
func passed(t *testing.T, base, cluster string, count int) (names []string, ready bool) {
	t.Helper()
	answer, err := ask(t, http.MethodGet, base+"/api/v2/alerts?filter=cluster%3D%22"+cluster+"%22", nil)
	if err != nil {
		t.Fatal(err)
	}
	var known []notification
	if err := json.Unmarshal(answer, &known); err != nil {
		t.Fatal(err)
	}
	ready = len(known) == count
	for _, n := range known {
		ready = ready && n.Status.State != "unprocessed"
		if n.Status.State == "active" {
			names = append(names, strings.TrimSpace(n.Labels["alertname"]+" "+n.Labels["node"]))
		}
	}
	slices.Sort(names)
	return names, ready
}

// settled is what Alertmanager passes on when it has come to rest: what holds an alert
// back is seen a moment after the alert, so that want must stand for some looks.
func settled(t *testing.T, base, cluster string, count int, want []string) []string {
	t.Helper()
	const looks, most = 5, 400
	var names []string
	for stands, n := 0, 0; stands < looks && n < most; n++ {
		var ready bool
		if names, ready = passed(t, base, cluster, count); ready && slices.Equal(names, want) {
			stands++
		} else {
			stands = 0
		}
		time.Sleep(50 * time.Millisecond)
	}
	return names
}

// TestHeldBack: what a real Alertmanager passes on with the example: cluster before
// node, node before port, port before pair, and two faults are two.
func TestHeldBack(t *testing.T) {
	base := alertmanager(t)
	many := []string{"GDRManyNodesStaged"}
	for i := range 100 {
		many = append(many, fmt.Sprintf("GDRPathStaged node=n%d", i), fmt.Sprintf("GDRPeermemMissing node=n%d", i))
	}
	for i, c := range []struct {
		name         string
		fires, comes []string
	}{
		{"peer memory lost on 100 nodes", many, []string{"GDRManyNodesStaged"}},
		{"peer memory lost on one", []string{"GDRPathStaged node=a", "GDRPeermemMissing node=a"}, []string{"GDRPathStaged a"}},
		{"a switch", []string{"RDMAManyPortsDown", "RDMAPortDown node=a device=m0 port=1", "RDMAPortDown node=b device=m0 port=1"}, []string{"RDMAManyPortsDown"}},
		{"a card is gone", []string{"RDMANICMissing node=a", "RDMAPortDown node=a device=m0 port=1"}, []string{"RDMANICMissing a"}},
		{"a port before its pair", []string{"RDMAPortRateLow node=a device=m0 port=1", "GDRPathDegraded node=a device=m0 gpu_address=g"}, []string{"RDMAPortRateLow a"}},
		{"a port and another pair", []string{"RDMAPortDown node=a device=m0 port=1", "GDRPathDegraded node=a device=m1 gpu_address=g", "GDRPathDegraded node=b device=m0 gpu_address=g"}, []string{"GDRPathDegraded a", "GDRPathDegraded b", "RDMAPortDown a"}},
		{"a lost GPU and another's pair", []string{"GPULost node=a gpu_address=g", "GDRPathDegraded node=a device=m0 gpu_address=g", "GDRPathDegraded node=a device=m1 gpu_address=h"}, []string{"GDRPathDegraded a", "GPULost a"}},
		{"wrong data in the midst of it", []string{"GDRManyNodesStaged", "GDRManyNodesDegraded", "GPULost node=a gpu_address=g", "RDMAPortDown node=a device=m0 port=1", "GDRDataCorruption node=a device=m0 gpu_address=g"},
			[]string{"GDRDataCorruption a", "GDRManyNodesDegraded", "GDRManyNodesStaged", "GPULost a", "RDMAPortDown a"}},
		{"staged, beside all that is less", []string{"GDRPathStaged node=a", "GPULost node=a gpu_address=g", "RDMANICMissing node=a", "GDRManyNodesDegraded"}, []string{"GDRManyNodesDegraded", "GDRPathStaged a", "GPULost a", "RDMANICMissing a"}},
		{"a switch, and its rail", []string{"RDMAManyPortsDown", "GDRPeerRailBad rail=r1", "GDRPeerNodeBad node=a peer=a", "GDRPeerPathBad node=b from=b peer=c"}, []string{"RDMAManyPortsDown"}},
		{"a rail before nodes and pairs", []string{"GDRPeerRailBad rail=r1", "GDRPeerNodeBad node=a peer=a", "GDRPeerNodeBad node=b peer=b", "GDRPeerAsymmetric node=c from=c peer=d", "GDRPeerUnmeasured node=c"}, []string{"GDRPeerRailBad", "GDRPeerUnmeasured c"}},
		{"a port before its node, and another pair", []string{"RDMAPortDown node=a device=m0 port=1", "GDRPeerNodeBad node=a peer=A", "GDRPeerPathBad node=a from=A peer=B", "GDRPeerPathBad node=c from=C peer=D"}, []string{"GDRPeerPathBad c", "RDMAPortDown a"}},
		{"a node before its pairs, from both sides", []string{"GDRPeerNodeBad node=a peer=A", "GDRPeerAsymmetric node=a from=A peer=B", "GDRPeerAsymmetric node=b from=B peer=A", "GDRPeerPathBad node=b from=B peer=C"}, []string{"GDRPeerNodeBad a", "GDRPeerPathBad b"}},
		{"slower one way", []string{"GDRPeerAsymmetric node=a from=A peer=B device=m0 peer_device=m0 slower=write", "GDRPeerPathBad node=a from=A peer=B", "GDRPeerPathBad node=a from=A peer=C"}, []string{"GDRPeerAsymmetric a", "GDRPeerPathBad a"}},
		{"a certificate that has ended", []string{"GDRPeerCertificateEnds node=a what=ended", "GDRPeerNodeBad node=a peer=a", "GDRPeerUnmeasured node=a", "GDRPeerPathBad node=b from=b peer=c"}, []string{"GDRPeerCertificateEnds a", "GDRPeerPathBad b"}},
		{"one that ends soon", []string{"GDRPeerCertificateEnds node=a what=late", "GDRPeerNodeBad node=a peer=a"}, []string{"GDRPeerCertificateEnds a", "GDRPeerNodeBad a"}},
		{"certificates of all have ended", []string{"GDRManyPeerCertificatesEnd what=ended", "GDRPeerCertificateEnds node=a what=ended", "GDRPeerCertificateEnds node=b what=files", "GDRPeerNodeBad node=a peer=a", "GDRPeerUnmeasured node=b"}, []string{"GDRManyPeerCertificatesEnd", "GDRPeerCertificateEnds b"}},
		{"certificates of many end soon", []string{"GDRManyPeerCertificatesEnd what=late", "GDRPeerCertificateEnds node=a what=late", "GDRPeerNodeBad node=a peer=a"}, []string{"GDRManyPeerCertificatesEnd", "GDRPeerNodeBad a"}},
		{"wrong data between nodes", []string{"RDMAManyPortsDown", "GDRPeerRailBad rail=r1", "GDRPeerNodeBad node=a peer=A", "GDRPeerCorrupt node=a"}, []string{"GDRPeerCorrupt a", "RDMAManyPortsDown"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster := fmt.Sprintf("c%d", i)
			post(t, base, cluster, c.fires)
			if got := settled(t, base, cluster, len(c.fires), c.comes); !slices.Equal(got, c.comes) {
				t.Errorf("passed on: %v, want %v", got, c.comes)
			}
		})
	}
}
