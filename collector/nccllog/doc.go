// Package nccllog says what a job's log shows of GPUDirect RDMA: it reads the
// output of NCCL_DEBUG=INFO, of one rank or of many mixed together, and judges it.
//
// NCCL says of each connection over the network how its data goes, in one line:
//
//	Channel 00/0 : 3[3] -> 11[3] [send] via NET/IB/3/GDRDMA
//
// With /GDRDMA the NIC reads or writes the GPU's memory itself; without it the
// data is copied through host memory. Nothing else proves it: "GPU Direct RDMA
// Enabled for HCA" says what a NIC could do, not what a connection does. All other
// lines serve to say why.
//
// The package reads a stream in bounded memory, whatever is in it, and holds what
// it found in tables that end, with the number of what they left out. All texts
// from the log are made printable and short before they are kept.
package nccllog
