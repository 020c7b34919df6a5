package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback/prober"
)

// TestPortRates: a rate is read once a minute, for each port, also if it cannot be
// read; where nothing is kept it is read each time.
func TestPortRates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rates portRates
		reads, value := 0, sysread.Some(50e9)
		read := func() sysread.Maybe[float64] { reads++; return value }
		wants := func(what string, port int, want sysread.Maybe[float64], wantReads int) {
			t.Helper()
			if got := rates.of(prober.Port{Device: "mlx5_0", Number: port}, read); got != want || reads != wantReads {
				t.Errorf("%s: %v after %d reads, want %v after %d", what, got, reads, want, wantReads)
			}
		}
		wants("first", 1, value, 1)
		value = sysread.Maybe[float64]{}
		time.Sleep(rateAge - time.Nanosecond)
		wants("a moment before", 1, sysread.Some(50e9), 1)
		wants("another port", 2, value, 2)
		time.Sleep(time.Nanosecond)
		wants("a minute later", 1, value, 3)
		wants("not known", 1, value, 3)
		time.Sleep(rateAge)
		value = sysread.Some(12.5e9)
		wants("two minutes later", 1, value, 4)
		if len(rates.last) != 1 {
			t.Errorf("kept: %v", rates.last)
		}
		var none *portRates
		for range 2 {
			none.of(prober.Port{}, read)
		}
		if reads != 6 {
			t.Errorf("%d reads", reads)
		}
	})
}

// TestProberHostHanging: a read that takes its time does not hang; one that does not
// answer is named, until it does.
func TestProberHostHanging(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newProberHost(&config{}, (&pairList{}).choice(), nil, nil)
		given, cancel := context.WithCancel(t.Context())
		cancel()
		answers := make(chan struct{})
		if hanging := h.hanging(t.Context()); hanging != "" {
			t.Errorf("nothing is read, and hangs: %s", hanging)
		}
		for device, answer := range map[string]func(){
			"mlx5_0": func() { time.Sleep(500 * time.Millisecond) }, "mlx5_1": func() { <-answers }, "mlx5_2": func() { time.Sleep(time.Millisecond) },
		} {
			unlessHanging(given, h, device, func() int { answer(); return 0 })
		}
		if hanging := h.hanging(t.Context()); hanging != "mlx5_1" {
			t.Errorf("%q hangs", hanging)
		}
		close(answers)
		if hanging := h.hanging(t.Context()); hanging != "" {
			t.Errorf("%q hangs", hanging)
		}
		if _, read := unlessHanging(t.Context(), h, "mlx5_1", func() int { return 0 }); !read {
			t.Error("it is not read any more")
		}
	})
}
