package sysread

import "sync/atomic"

// IO is a reader's way to the kernel's files: it counts what is asked of the
// kernel and bounds the descriptors kept open. The zero value keeps none.
type IO struct {
	// Descriptors is the largest number of files to keep open; further ones
	// are opened at each read. 0 keeps none.
	Descriptors int64
	// Files is where files are read; nil: the running system, with descriptors
	// kept open, which others than the system have none of.
	Files Files

	opens, reads, requests, held atomic.Int64
}

// Opens returns the number of files opened so far.
func (io *IO) Opens() int64 { return io.opens.Load() }

// Reads returns the number of read system calls made so far.
func (io *IO) Reads() int64 { return io.reads.Load() }

// Request counts a request made of the kernel by another way than a file, such
// as netlink.
func (io *IO) Request() { io.requests.Add(1) }

// Requests returns the number of such requests made so far.
func (io *IO) Requests() int64 { return io.requests.Load() }

// Held returns the number of files kept open now.
func (io *IO) Held() int64 { return io.held.Load() }

func (io *IO) hold() bool {
	if io.held.Add(1) <= io.Descriptors {
		return true
	}
	io.held.Add(-1)
	return false
}

func (io *IO) release() { io.held.Add(-1) }
