package rdma

import (
	"errors"
	"io/fs"
	"slices"
	"sort"
	"time"

	"gdr_exporter/collector/sysread"
)

// How often what refuses to be read is asked again.
const (
	retryFileFirst = time.Minute
	retryDirFirst  = 10 * time.Minute
	retryMost      = time.Hour
)

// counterFile is one file of a counter directory.
type counterFile struct {
	attr  sysread.Attr
	name  string // relative to the port or device, for error messages
	info  *CounterInfo
	value sysread.Maybe[uint64] // as of the last read
	sysread.Backoff
}

// counterDir is one directory of counters.
type counterDir struct {
	source  Source
	path    string
	names   []string // as listed, to see changes
	files   []counterFile
	omitted int
	listed  bool // what files there are is known, since it could be listed once
	// restricted: every file refuses. Reading the directory of such a function
	// costs a kernel log line per file (node_exporter#3434), so it is left
	// alone but for a rare try of one file.
	restricted bool
	sysread.Backoff
}

// newCounterDir returns the directory below base, or nil if there is none.
func newCounterDir(io *sysread.IO, source Source, base string) (*counterDir, error) {
	d := &counterDir{source: source, path: base + "/" + source.dir()}
	err := d.rescan(io)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return d, err
}

// rescan takes up files that appeared and lets go of those that went.
func (d *counterDir) rescan(io *sysread.IO) error {
	names, err := sysread.ReadNames(io, d.path)
	if err != nil {
		return err
	}
	d.listed = true
	if slices.Equal(names, d.names) {
		return nil
	}
	kept := make(map[string]counterFile, len(d.files))
	for _, file := range d.files {
		kept[file.info.File] = file
	}
	infos, omitted := d.choose(names)
	files := make([]counterFile, 0, len(infos))
	for _, info := range infos {
		file, found := kept[info.File]
		if !found {
			file = counterFile{info: info, name: d.source.dir() + "/" + info.File, attr: sysread.NewAttr(d.path + "/" + info.File)}
		}
		delete(kept, info.File)
		files = append(files, file)
	}
	for _, gone := range kept {
		gone.attr.Close(io)
	}
	d.names, d.files, d.omitted = names, files, omitted
	return nil
}

// choose picks at most MaxCounters files, known ones first, and orders them.
//
// mlx5 refreshes its cache of hw_counters only when the file read is
// rx_write_requests; every other file read outside the 10 ms after that asks
// the firmware again (kernel commit for optional counters, 5.16). Reading it
// first makes one query serve them all.
func (d *counterDir) choose(names []string) ([]*CounterInfo, int) {
	infos := make([]*CounterInfo, 0, len(names))
	for _, name := range names {
		infos = append(infos, Info(d.source, name))
	}
	sort.SliceStable(infos, func(i, j int) bool { return rank(infos[i]) < rank(infos[j]) })
	if len(infos) <= MaxCounters {
		return infos, 0
	}
	return infos[:MaxCounters], len(infos) - MaxCounters
}

func rank(info *CounterInfo) int {
	switch {
	case info.File == "rx_write_requests":
		return 0
	case info.Known:
		return 1
	default:
		return 2
	}
}

// read appends the directory's values to out. Files of the slow group are read
// only if slow, else their last value is repeated.
func (d *counterDir) read(r *pass, slow bool, out []Counter) []Counter {
	if d.restricted && !d.lifted(r) {
		return out
	}
	attempts, refusals, failed := 0, 0, len(r.errs)
	for i := range d.files {
		file := &d.files[i]
		if (slow || !file.info.Slow) && !file.Waiting(r.now) {
			attempts++
			if file.read(r) {
				refusals++
			}
		}
		if file.value.Known {
			out = append(out, Counter{Info: file.info, Value: file.value.Value})
		}
	}
	if attempts > 1 && refusals == attempts && d.nothingKnown() {
		d.restrict(r)
		r.quieten(failed)
	}
	return out
}

// readSettings is read where netlink gave the counters: only the settings among
// the files, which netlink does not give.
func (d *counterDir) readSettings(r *pass, slow bool, out []Counter) []Counter {
	for i := range d.files {
		file := &d.files[i]
		if !file.info.Setting() {
			continue
		}
		if slow && !file.Waiting(r.now) {
			file.read(r)
		}
		if file.value.Known {
			out = append(out, Counter{Info: file.info, Value: file.value.Value})
		}
	}
	return out
}

// lifted tries one file of a restricted directory, if it is time, and reports
// whether it answered.
func (d *counterDir) lifted(r *pass) bool {
	if d.Waiting(r.now) || len(d.files) == 0 {
		return false
	}
	failed := len(r.errs)
	if d.files[0].read(r) {
		r.quieten(failed)
		d.Refuse(r.now, 0, retryDirFirst, retryMost)
		return false
	}
	d.restricted = false
	d.Reset()
	for i := range d.files {
		d.files[i].Reset()
	}
	return true
}

func (d *counterDir) restrict(r *pass) {
	d.restricted = true
	d.Refuse(r.now, 0, retryDirFirst, retryMost)
	d.close(r.io)
}

func (d *counterDir) nothingKnown() bool {
	for i := range d.files {
		if d.files[i].value.Known {
			return false
		}
	}
	return true
}

func (d *counterDir) close(io *sysread.IO) {
	for i := range d.files {
		d.files[i].attr.Close(io)
	}
}

// read takes the file's value, and reports whether the driver refused it.
func (f *counterFile) read(r *pass) bool {
	value, err := f.take(r)
	if err == nil {
		f.value = sysread.Some(value)
		f.Reset()
		return false
	}
	f.value = sysread.Maybe[uint64]{}
	r.fail(f.name, err)
	if !sysread.Refused(err) {
		f.Reset()
		return false
	}
	f.Refuse(r.now, 1, retryFileFirst, retryMost)
	return true
}

func (f *counterFile) take(r *pass) (uint64, error) {
	text, err := f.attr.Read(r.io, r.buf)
	if err != nil {
		return 0, err
	}
	return sysread.ParseCounter(text)
}
