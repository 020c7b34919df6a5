package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gdr_exporter/collector/profile"
)

func TestProfileMistakes(t *testing.T) {
	dir := emptyDir(t)
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "--profile=" + path
	}
	for _, c := range []struct{ flag, want string }{
		{"--profile=", "must be auto, none or a file"},
		{"--profile=/nosuch", "--profile=/nosuch: no such file or directory"},
		{"--profile=" + dir, "no regular file"},
		{file("empty", ""), "nothing in it"},
		{file("key", "gpus: 8\nnics: 8\n"), "line 2: field nics not found"},
		{file("number", "gpus: -8\n"), "gpus: -8 is not from 1"},
		{file("binary", "\x00\x01\xff"), "--profile="},
	} {
		runHere("serve", c.flag, "--web.listen-address=127.0.0.1:0", "--state.dir=", "--control.socket=").wantMistake(t, c.want)
	}
}

// TestProfileOfReplay: what is replayed is expected what a file says, is not
// learned of, and leaves the state directory alone.
func TestProfileOfReplay(t *testing.T) {
	t.Parallel()
	dir := emptyDir(t)
	site := write(t, "site.yaml", "name: ours\nports: [{device: mlx5_0}, {device: mlx5_9}]\n")
	state := filepath.Join(dir, "state")
	r := serveWith(t, "--web.listen-address=127.0.0.1:0", "--replay=h100-8x8", "--profile="+site, "--state.dir="+state, "--control.socket=")
	page := metrics(t, r)
	for _, want := range []string{
		`gdr_profile_info{name="ours",source="file"} 1`, `gdr_rdma_port_expected{device="mlx5_0",port="1"} 1`, `gdr_rdma_port_expected{device="mlx5_9",port="1"} 1`,
	} {
		if !strings.Contains(page, "\n"+want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if n := strings.Count(page, "\ngdr_rdma_port_expected{"); n != 2 {
		t.Errorf("%d expected ports", n)
	}
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Errorf("the state directory: %v", err)
	}
}

func TestProfileNone(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]int{"--profile=none": 0, "--profile=auto": 1} {
		r := serveWith(t, "--web.listen-address=127.0.0.1:0", "--replay=soft-roce", flag, "--state.dir=", "--control.socket=")
		page := metrics(t, r)
		if n := strings.Count(page, `gdr_profile_info{name="",source="none"} 1`); n != want || strings.Contains(page, "gdr_rdma_port_expected{") {
			t.Errorf("%s: %d series, want %d", flag, n, want)
		}
	}
}

// TestForgetLearned: what was learned is forgotten with the results.
func TestForgetLearned(t *testing.T) {
	dir := emptyDir(t)
	learned := &profile.Learned{Version: 1, GPUs: 8, Ports: []profile.LearnedPort{{Device: "mlx5_0", Port: 1}, {Device: "mlx5_1", Port: 1}}}
	if err := learned.Write(dir); err != nil {
		t.Fatal(err)
	}
	if r := runHere("state", "forget", "--device=mlx5_0", "--state.dir="+dir); r.code != exitOK || !strings.Contains(r.stdout, "Forgot 1 ports and numbers") {
		t.Errorf("%+v", r)
	}
	if left, err := profile.ReadLearned(dir); err != nil || len(left.Ports) != 1 || left.GPUs != 8 {
		t.Errorf("%+v, %v", left, err)
	}
	if r := runHere("state", "forget", "--all", "--state.dir="+dir); r.code != exitOK || !strings.Contains(r.stdout, "Forgot 2 ports and numbers") {
		t.Errorf("%+v", r)
	}
}
