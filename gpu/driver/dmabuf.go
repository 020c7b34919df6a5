package driver

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gdr_exporter/collector/sysread"
)

// DMABuf is a buffer of GPU memory that the driver has exported as dma-buf.
type DMABuf struct {
	Bytes uint64
	// Attached are the devices attached to it, as the kernel names them: the PCI
	// address of a NIC that has registered it.
	Attached []string
}

// bufinfo is where the kernel lists all dma-bufs of the host, below sysfs. Only root
// may look into debugfs; it may not be mounted, and in the lockdown mode
// confidentiality nobody may.
const bufinfo = "kernel/debug/dma_buf/bufinfo"

// Limits of reading bufinfo. The kernel holds the lock of all dma-bufs, and each
// one's own for a moment, while it writes the list, so it is read rarely and never
// for more than a small share of the time; what holds such a lock for long, a GPU
// driver that hangs, must not hold up what else is read of the driver.
const (
	maxBufinfo      = 4 << 20     // bytes: some 30,000 buffers
	bufinfoInterval = time.Minute // at least between two reads
	bufinfoShare    = 600         // the interval is at least so many times a read's duration
	bufinfoWait     = time.Second // after which a read is left alone
	bufinfoRefused  = time.Hour   // most between attempts that are refused
)

// errBufinfoHangs says that reading the list does not return.
var errBufinfoHangs = fmt.Errorf("does not return: %w", syscall.ETIMEDOUT)

// bufferList is what is known of the list of dma-bufs between reads.
type bufferList struct {
	due     time.Time
	at      time.Time
	buffers sysread.Maybe[[]DMABuf]
	err     error
	refused sysread.Backoff
	pending chan bufferAnswer // of a read that has not returned; nil: there is none
}

type bufferAnswer struct {
	buffers  []DMABuf
	err      error
	duration time.Duration
}

// dmaBufs puts the buffers that the driver has exported into the reading. Where no
// driver is loaded there is nothing to ask for.
func (p *pass) dmaBufs(reading *Reading) {
	list := &p.buffers
	if reading.Loaded.Known && !reading.Loaded.Value {
		*list = bufferList{pending: list.pending}
		return
	}
	if list.pending == nil && !p.now.Before(list.due) && !list.refused.Waiting(p.now) {
		list.pending = p.readBuffers()
	}
	p.awaitBuffers(list)
	reading.DMABufs, reading.DMABufsRead, reading.DMABufsErr = list.buffers, list.at, list.err
}

// readBuffers begins to read the list.
func (p *pass) readBuffers() chan bufferAnswer {
	answer := make(chan bufferAnswer, 1)
	io, path := &p.io, p.options.Sysfs+"/"+bufinfo
	go func() {
		began := time.Now()
		text, err := io.ReadLines(path, maxBufinfo, keepBuffers())
		var buffers []DMABuf
		if err == nil {
			buffers, err = parseBuffers(text)
		}
		answer <- bufferAnswer{buffers, err, time.Since(began)}
	}()
	return answer
}

// awaitBuffers waits a moment for a read that has begun. While one hangs no other
// begins, and nothing is known.
func (p *pass) awaitBuffers(list *bufferList) {
	if list.pending == nil {
		return
	}
	if list.err == errBufinfoHangs { //nolint:errorlint // our own, and not wrapped
		select {
		case answer := <-list.pending:
			p.takeBuffers(list, answer)
		default:
		}
		return
	}
	timeout := time.NewTimer(bufinfoWait)
	defer timeout.Stop()
	select {
	case answer := <-list.pending:
		p.takeBuffers(list, answer)
	case <-timeout.C:
		list.buffers, list.err = sysread.Maybe[[]DMABuf]{}, errBufinfoHangs
		p.fail(deviceName, bufinfo, list.err)
	}
}

func (p *pass) takeBuffers(list *bufferList, answer bufferAnswer) {
	list.pending, list.at, list.err = nil, p.now, answer.err
	list.due = p.now.Add(max(bufinfoInterval, bufinfoShare*answer.duration))
	list.buffers = sysread.Maybe[[]DMABuf]{Value: answer.buffers, Known: answer.err == nil}
	switch {
	case answer.err == nil:
		list.refused.Reset()
	case p.gone(p.options.Sysfs+"/"+bufinfo, answer.err): // no debugfs here
	default:
		if sysread.Refused(answer.err) {
			list.refused.Refuse(p.now, 0, bufinfoInterval, bufinfoRefused)
		}
		p.fail(deviceName, bufinfo, answer.err)
	}
}

// exporters are the names that NVIDIA's driver gives its buffers: that of the
// module (up to 595), and nv_dmabuf (newer ones; nv-dmabuf.c). What nvidia-drm
// exports has another name and is of no use to a NIC.
var exporters = map[string]bool{"nvidia": true, "nv_dmabuf": true}

// Lines of the list (drivers/dma-buf/dma-buf.c, dma_buf_debug_show). Kernels differ
// in what follows the exporter (nothing before 4.20, then an inode and a name) and
// in the lines about fences between a buffer and its devices:
//
//	Dma-buf Objects:
//	size    	flags   	mode    	count   	exp_name	ino     	name
//	02097152	02080002	00080007	00000002	nvidia	00001234	<none>
//		kernel fence: ...
//		Attached Devices:
//		0000:18:00.0
//	Total 1 devices attached
const (
	titleOfBuffers  = "Dma-buf Objects:"
	titleOfAttached = "\tAttached Devices:"
)

// bufferLine matches a buffer's first line. It is as narrow as the kernel writes it:
// the name at its end is any 31 bytes that its process wants, newlines too, which
// are too few for such a line.
var bufferLine = regexp.MustCompile(`^([0-9]{8,20})\t[0-9a-f]{8}\t[0-9a-f]{8}\t[0-9]{8,20}\t([^\t\n]{1,64})(?:\t|$)`)

// keepBuffers returns what keeps of the list its title, our buffers' lines and those
// of their devices.
func keepBuffers() func(line []byte) bool {
	ours, attached := false, false
	return func(line []byte) bool {
		line = bytes.TrimSuffix(line, []byte("\n"))
		if match := bufferLine.FindSubmatch(line); match != nil {
			ours, attached = exporters[string(match[2])], false
			return ours
		}
		if string(line) == titleOfAttached {
			attached = true
			return ours
		}
		attached = attached && len(line) > 0 && line[0] == '\t'
		return ours && attached || string(line) == titleOfBuffers
	}
}

// parseBuffers reads what keepBuffers has left.
func parseBuffers(text []byte) ([]DMABuf, error) {
	buffers := []DMABuf{}
	names := map[string]string{} // each device's name is kept once
	titled := false
	var current *DMABuf
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		match := bufferLine.FindStringSubmatch(line)
		switch {
		case line == titleOfBuffers:
			titled = true
		case match != nil:
			size, err := strconv.ParseUint(match[1], 10, 64)
			if err != nil {
				return nil, sysread.Invalid(line)
			}
			buffers = append(buffers, DMABuf{Bytes: size})
			current = &buffers[len(buffers)-1]
		case current == nil:
		case line == titleOfAttached: // one before it is part of a name
			current.Attached = nil
		case strings.HasPrefix(line, "\t"):
			name, known := names[line]
			if !known {
				name = strings.Clone(strings.TrimSpace(line))
				names[line] = name
			}
			current.Attached = append(current.Attached, name)
		}
	}
	if !titled {
		return nil, sysread.Invalid(string(text))
	}
	return buffers, nil
}
