package nccllog

import (
	"bytes"
	"testing"
)

func BenchmarkRead(b *testing.B) {
	log := bytes.Repeat([]byte("node-a:900:909 [0] NCCL INFO Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA\nepoch 3 loss 1.234 of something else that a job says\n"), 10000)
	b.SetBytes(int64(len(log)))
	for b.Loop() {
		if _, err := Read(b.Context(), bytes.NewReader(log), Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
