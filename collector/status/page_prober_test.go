package status

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// probed is a Snapshot of a prober with these pairs, read at the time of all pages.
func probed(pairs ...prober.PairStatus) *snapshot.Snapshot {
	s := of()
	s.Taken = at
	s.Prober = &prober.Status{Interval: time.Hour, Isolation: prober.InProcess, Pairs: pairs}
	return s
}

// completed is a result of an age.
func completed(depth prober.Depth, age time.Duration, outcome loopback.Outcome, reasons ...string) *prober.Completed {
	c := &prober.Completed{Depth: depth, Time: at.Add(-age), Idle: true, Judgement: loopback.Judgement{Outcome: outcome, Reasons: reasons}}
	if depth == prober.DepthFull && outcome != loopback.Failed {
		c.Result.Paths = []loopback.PathResult{
			{Path: loopback.PathHost, BytesPerSecond: sysread.Some(24.5e9), Ratio: sysread.Some(1.0)},
			{Path: loopback.PathGPU, BytesPerSecond: sysread.Some(24e9), Ratio: sysread.Some(0.9796)},
		}
	}
	return c
}

func pair(full, registration *prober.Completed) prober.PairStatus {
	return prober.PairStatus{
		Candidate: prober.Candidate{Pair: prober.Pair{GPU: "0000:1b:00.0", Device: "mlx5_0", Port: 1}, Distance: "PIX", Direct: true},
		Full:      full, Registration: registration,
	}
}

// TestPairRows: what stands, how old it is, and why there is nothing newer.
func TestPairRows(t *testing.T) {
	const full, register = prober.DepthFull, prober.DepthRegister
	fine := completed(full, 10*time.Minute, loopback.Fine)
	with := func(p prober.PairStatus, change func(*prober.PairStatus)) prober.PairStatus {
		change(&p)
		return p
	}
	corrupt := completed(full, time.Hour, loopback.Corrupt, "gpu: 3 words of 8 bytes arrived wrong")
	corrupt.Result.Paths[1].Mismatches = sysread.Some(3)
	loaded := completed(full, 3*time.Hour, loopback.Fine)
	loaded.Idle = false
	const before, rates = "0000:1b:00.0 mlx5_0 ", " 24.0 GB/s (0.98) 24.5 GB/s"
	for name, c := range map[string]struct {
		pair  prober.PairStatus
		want  string
		class string
	}{
		"never":        {pair(nil, nil), before + "not measured", ""},
		"fine":         {pair(fine, fine), before + "✓ fine 10 min" + rates, "good"},
		"slow":         {pair(completed(full, time.Hour, loopback.Slow, "gpu: 0.5 of the host path, below 0.85"), nil), before + "✗ slow 60 min" + rates + " gpu: 0.5 of the host path", "bad"},
		"corrupt":      {pair(corrupt, corrupt), before + "✗ corrupt 60 min 24.5 GB/s gpu: 3 words of 8 bytes arrived wrong", "bad"},
		"failed":       {pair(completed(full, 50*time.Hour, loopback.Failed, "neither"), nil), before + "✗ failed 2 days neither", "bad"},
		"unsupported":  {pair(nil, completed(register, time.Minute, loopback.Unsupported, "GeForce")), before + "unsupported 60 s GeForce", ""},
		"not judged":   {pair(nil, completed(register, time.Minute, loopback.NotJudged, "busy")), before + "? not judged 60 s busy", "open"},
		"registration": {pair(nil, completed(register, 5*time.Hour, loopback.Fine)), before + "✓ registration works 5 h", "good"},
		"lost since":   {pair(fine, completed(register, time.Minute, loopback.Failed, "EFAULT")), before + "✗ failed 60 s" + rates + " EFAULT", "bad"},
		"under load":   {pair(loaded, loaded), "3 h" + rates + " measured under load", "good"},
		"busy":         {with(pair(fine, fine), func(p *prober.PairStatus) { p.Skip = prober.ReasonNICBusy }), "10 min" + rates + " due, but kept back: nic busy", "good"},
		"hung": {with(pair(fine, fine), func(p *prober.PairStatus) {
			p.Hung, p.HungStage, p.Skip = at.Add(-time.Minute), loopback.StageRegister, prober.ReasonHung
		}), "10 min" + rates + " a measurement hangs since 60 s in stage register; its GPU and NIC are left alone until a restart", "good"},
		"withdrawn": {with(pair(fine, fine), func(p *prober.PairStatus) {
			p.Withdrawn, p.Unconfirmed = "failed", completed(full, 0, loopback.Failed)
		}), before + "✓ fine 10 min no rate any more: failed; failed, to be confirmed", "good"},
		"port down": {with(pair(nil, nil), func(p *prober.PairStatus) {
			p.Withdrawn, p.Skip = "the port is not ACTIVE any more", prober.ReasonPort
		}), before + "not measured due, but kept back: port not active; no rate any more: the port is not ACTIVE any more", ""},
		"one way": {with(pair(completed(register, time.Minute, loopback.Fine), nil), func(p *prober.PairStatus) {
			p.Full.Result.Registrations = []loopback.Registration{{Method: loopback.MethodPeermem}, {Method: loopback.MethodDMABuf, Err: errors.New("EOPNOTSUPP")}}
		}), before + "✓ registration works 60 s ✓ peermem, not dmabuf dmabuf: EOPNOTSUPP", "good"},
		"no way": {with(pair(completed(register, time.Minute, loopback.Failed, "neither"), nil), func(p *prober.PairStatus) {
			p.Full.Result.Registrations = []loopback.Registration{{Method: loopback.MethodPeermem, Err: errors.New("EFAULT")}}
		}), before + "✗ failed 60 s ✗ not peermem neither", "bad"},
		"mismatches": {with(pair(fine, fine), func(p *prober.PairStatus) { p.Mismatches = 7 }), "7 words arrived wrong", "good"},
	} {
		t.Run(name, func(t *testing.T) {
			got := page(t, probed(c.pair))
			checkTable(t, got)
			want(t, got, "What was measured", c.want)
			marked := `data-label="Result"><span><span class="` + c.class + `">`
			if has := strings.Contains(got, marked); has != (c.class != "") {
				t.Errorf("marked %q: %v in %s", c.class, has, got)
			}
		})
	}
}

// TestProberSentences: the usual is not said.
func TestProberSentences(t *testing.T) {
	wantNot(t, page(t, of()), "verdicts and measurements")
	s := probed(pair(nil, nil))
	wantNot(t, page(t, s), "Quiesced", "scheduled", "no pair", "child")
	s.Prober.Running = &prober.Pair{GPU: "0000:1b:00.0", Device: "mlx5_0", Port: 1}
	want(t, page(t, s), "being measured now")
	want(t, page(t, probed()), "There is no pair of GPU and RDMA device to measure.")
	s.Prober.Interval, s.Prober.QuiescedUntil, s.Prober.IsolationReason = 0, at.Add(30*time.Minute), "restarted twice within an hour"
	want(t, page(t, s), "Quiesced until 03:34:05 UTC", "No measurements are scheduled.", "in child processes: restarted twice within an hour.")
}

// TestManyPairs: the page is bounded, and what comes from files is text.
func TestManyPairs(t *testing.T) {
	const evil = "</td><script>alert(1)</script>"
	var pairs []prober.PairStatus
	for i := range mostShownPairs + 5 {
		p := pair(nil, completed(prober.DepthRegister, 0, loopback.Failed, evil))
		p.Device, p.Distance, p.Withdrawn = fmt.Sprint(evil, i), evil, evil
		pairs = append(pairs, p)
	}
	got := page(t, probed(pairs...))
	checkTable(t, got)
	want(t, got, "And 5 more in the JSON")
	if strings.Contains(got, "<script") || strings.Count(got, "alert(1)</") > 0 {
		t.Error("markup from a file")
	}
}
