package capture

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
)

// sample is a recording with a line of every kind.
func sample() *Recording {
	text := func(text string) FileAnswer {
		return FileAnswer{Data: []Segment{{Bytes: []byte(text)}}, Size: int64(len(text))}
	}
	first := text("1\n")
	number := Value{JSON: []byte("7")}
	return &Recording{
		Header: Header{
			Exporter: "0.1.0", Began: time.Unix(1_800_000_000, 0).UTC(), Ended: time.Unix(1_800_000_002, 500_000_000).UTC(),
			Readers: Readers{Sysfs: "/sys", Procfs: "/proc", DriverRoots: []string{"/", "/run/nvidia/driver"}},
		},
		Files: []File{
			{Path: "/proc/driver/nvidia/version", Op: OpAccess},
			{Path: "/proc/modules", Op: OpLines, Last: text("nvidia 1 <&>\n")},
			{Path: "/proc/nothing", Op: OpLines, Last: FileAnswer{}},
			{Path: "/sys/class/infiniband", Op: OpList, Last: FileAnswer{Names: []string{"mlx5_0", "mlx5_1"}}},
			{Path: "/sys/class/infiniband/mlx5_0", Op: OpLink, Last: FileAnswer{Target: "../../devices/0000:18:00.0/infiniband/mlx5_0"}},
			{Path: "/sys/class/iommu", Op: OpList, Last: FileAnswer{Names: []string{}}},
			{Path: "/sys/config", Op: OpStat, Last: FileAnswer{Kind: sysread.KindFile}},
			{Path: "/sys/config", Op: OpRead, Last: FileAnswer{Data: []Segment{{Bytes: []byte{0x86, 0x80}}, {At: 0x40, Bytes: []byte{0}}, {At: 0x100, Errno: "EIO"}}, Size: -1}},
			{Path: "/sys/counter", Op: OpRead, Last: text("2\n"), First: &first},
			{Path: "/sys/empty", Op: OpRead, Last: FileAnswer{}},
			{Path: "/sys/ends", Op: OpRead, Last: FileAnswer{Data: []Segment{{Bytes: []byte{1}}}, Size: 1}},
			{Path: "/sys/gone", Op: OpRead, Last: FileAnswer{Errno: "ENODEV"}},
			{Path: "/sys/hangs", Op: OpRead, Last: FileAnswer{Hang: true}},
		},
		Answers: []Answer{
			{Part: PartDevlink, Question: "dial", Last: Value{Errno: "EPERM"}},
			{Part: PartNetlink, Question: "GET", Last: Value{Hang: true}},
			{Part: PartNetlink, Question: "RES_CTX_GET 0", Last: Value{JSON: []byte("18446744073709551615")}, First: &number},
			{Part: PartNVML, Question: "Init", Last: Value{Return: 9}},
		},
	}
}

// sampleText is the text of sample. It is what other versions have to read: a
// change here is a change of Version.
const sampleText = `{"gdr_exporter_capture":1,"exporter":"0.1.0","began":"2027-01-15T08:00:00Z","ended":"2027-01-15T08:00:02.5Z","readers":{"sysfs":"/sys","procfs":"/proc","driver_roots":["/","/run/nvidia/driver"]}}
{"path":"/proc/driver/nvidia/version","op":"access"}
{"path":"/proc/modules","op":"lines","text":"nvidia 1 <&>\n"}
{"path":"/proc/nothing","op":"lines","text":""}
{"path":"/sys/class/infiniband","op":"list","names":["mlx5_0","mlx5_1"]}
{"path":"/sys/class/infiniband/mlx5_0","op":"link","target":"../../devices/0000:18:00.0/infiniband/mlx5_0"}
{"path":"/sys/class/iommu","op":"list","names":[]}
{"path":"/sys/config","op":"stat","kind":"file"}
{"path":"/sys/config","op":"read","parts":[{"at":0,"hex":"8680"},{"at":64,"hex":"00"},{"at":256,"errno":"EIO"}]}
{"path":"/sys/counter","op":"read","text":"2\n","first":{"text":"1\n"}}
{"path":"/sys/empty","op":"read","text":""}
{"path":"/sys/ends","op":"read","parts":[{"at":0,"hex":"01"}],"size":1}
{"path":"/sys/gone","op":"read","errno":"ENODEV"}
{"path":"/sys/hangs","op":"read","hang":true}
{"part":"devlink","ask":"dial","errno":"EPERM"}
{"part":"netlink","ask":"GET","hang":true}
{"part":"netlink","ask":"RES_CTX_GET 0","value":18446744073709551615,"first":{"value":7}}
{"part":"nvml","ask":"Init","return":9}
{"lines":17}
`

func TestText(t *testing.T) {
	var b bytes.Buffer
	if err := sample().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if b.String() != sampleText {
		t.Errorf("%s", b.String())
	}
	read, err := Read(strings.NewReader(sampleText))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(read, sample()) {
		t.Errorf("%+v", read)
	}
	again(t, sample())
}

// TestSameText: the compressed form of the same recording is the same.
func TestSameText(t *testing.T) {
	var a, b bytes.Buffer
	for _, to := range []io.Writer{&a, &b} {
		if err := sample().Write(to); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("differs")
	}
}

func compressed(t testing.TB, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestTruncated: no part of a recording is taken for a whole one.
func TestTruncated(t *testing.T) {
	for form, whole := range map[string][]byte{"text": []byte(sampleText), "compressed": compressed(t, sampleText)} {
		for n := range len(whole) {
			recording, err := Read(bytes.NewReader(whole[:n]))
			if err == nil || recording != nil {
				t.Fatalf("%d of %d bytes of %s: %+v, %v", n, len(whole), form, recording, err)
			}
			if !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrForeign) && !errors.Is(err, ErrInvalid) {
				t.Errorf("%d bytes of %s: %v", n, form, err)
			}
		}
	}
}

// replaceLine is sampleText with a line in the place of the one that begins so.
func replaceLine(begins, line string) string {
	lines := strings.SplitAfter(sampleText, "\n")
	for i := range lines {
		if strings.HasPrefix(lines[i], begins) {
			lines[i] = line
			return strings.Join(lines, "")
		}
	}
	panic("no line " + begins)
}

func TestHostile(t *testing.T) {
	gone := `{"path":"/sys/gone"`
	file := func(line string) string { return replaceLine(gone, line+"\n") }
	header := func(line string) string { return replaceLine(`{"gdr`, line+"\n") }
	answer := func(line string) string { return replaceLine(`{"part":"nvml"`, line+"\n") }
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"nothing":                    {"", ErrForeign},
		"another file":               {"root:x:0:0:root:/root:/bin/bash\n", ErrForeign},
		"other JSON":                 {"{}\n", ErrForeign},
		"an array":                   {"[1]\n", ErrForeign},
		"a zip file":                 {"PK\x03\x04aaaaaaaaaaaaaaaaa", ErrForeign},
		"gzip of another file":       {string(compressed(t, "root:x:0:0\n")), ErrForeign},
		"no gzip":                    {"\x1f\x8bhello, hello, hello", ErrForeign},
		"gzip in gzip":               {string(compressed(t, string(compressed(t, sampleText)))), ErrForeign},
		"a later version":            {header(`{"gdr_exporter_capture":2,"readers":{},"new":1}`), ErrForeign},
		"version 0":                  {header(`{"gdr_exporter_capture":0}`), ErrForeign},
		"a relative root":            {header(`{"gdr_exporter_capture":1,"began":"2027-01-15T08:00:00Z","ended":"2027-01-15T08:00:00Z","readers":{"sysfs":"../sys","procfs":""}}`), ErrInvalid},
		"unknown field of header":    {header(`{"gdr_exporter_capture":1,"more":1}`), ErrInvalid},
		"path traversal":             {file(`{"path":"/sys/../etc/shadow","op":"read","text":""}`), ErrInvalid},
		"relative path":              {file(`{"path":"etc/shadow","op":"read","text":""}`), ErrInvalid},
		"path with NUL":              {file(`{"path":"/sys/gone\u0000","op":"read","text":""}`), ErrInvalid},
		"long path":                  {file(`{"path":"/sys/gone/` + strings.Repeat("a", 5000) + `","op":"read","text":""}`), ErrInvalid},
		"name with a slash":          {file(`{"path":"/sys/gone","op":"list","names":["../x"]}`), ErrInvalid},
		"name dot dot":               {file(`{"path":"/sys/gone","op":"list","names":[".."]}`), ErrInvalid},
		"names out of order":         {file(`{"path":"/sys/gone","op":"list","names":["b","a"]}`), ErrInvalid},
		"names twice":                {file(`{"path":"/sys/gone","op":"list","names":["a","a"]}`), ErrInvalid},
		"no names":                   {file(`{"path":"/sys/gone","op":"list"}`), ErrInvalid},
		"no target":                  {file(`{"path":"/sys/gone","op":"link"}`), ErrInvalid},
		"two answers":                {file(`{"path":"/sys/gone","op":"link","target":"x","kind":"file"}`), ErrInvalid},
		"answer and errno":           {file(`{"path":"/sys/gone","op":"link","target":"x","errno":"EIO"}`), ErrInvalid},
		"text and errno":             {file(`{"path":"/sys/gone","op":"read","text":"x","errno":"EIO"}`), ErrInvalid},
		"text and parts":             {file(`{"path":"/sys/gone","op":"read","text":"x","parts":[{"at":0,"hex":"00"}]}`), ErrInvalid},
		"text of a list":             {file(`{"path":"/sys/gone","op":"list","names":[],"text":"x"}`), ErrInvalid},
		"errno with markup":          {file(`{"path":"/sys/gone","op":"read","errno":"E<b>"}`), ErrInvalid},
		"unknown kind":               {file(`{"path":"/sys/gone","op":"stat","kind":"door"}`), ErrInvalid},
		"unknown operation":          {file(`{"path":"/sys/gone","op":"write","text":"x"}`), ErrInvalid},
		"unknown field":              {file(`{"path":"/sys/gone","op":"read","text":"","mode":"0777"}`), ErrInvalid},
		"parts over each other":      {file(`{"path":"/sys/gone","op":"read","parts":[{"at":0,"hex":"0000"},{"at":1,"hex":"00"}]}`), ErrInvalid},
		"parts that touch":           {file(`{"path":"/sys/gone","op":"read","parts":[{"at":0,"hex":"00"},{"at":1,"hex":"00"}]}`), ErrInvalid},
		"an empty part":              {file(`{"path":"/sys/gone","op":"read","parts":[{"at":0}]}`), ErrInvalid},
		"a part before the start":    {file(`{"path":"/sys/gone","op":"read","parts":[{"at":-1,"hex":"00"}]}`), ErrInvalid},
		"a part far away":            {file(`{"path":"/sys/gone","op":"read","parts":[{"at":9223372036854775807,"hex":"00"}]}`), ErrInvalid},
		"a size within parts":        {file(`{"path":"/sys/gone","op":"read","parts":[{"at":0,"hex":"0000"}],"size":1}`), ErrInvalid},
		"no hexadecimal":             {file(`{"path":"/sys/gone","op":"read","parts":[{"at":0,"hex":"0g"}]}`), ErrInvalid},
		"lines in parts":             {file(`{"path":"/sys/gone","op":"lines","parts":[{"at":5,"hex":"00"}]}`), ErrInvalid},
		"the same twice":             {file(`{"path":"/sys/ends","op":"read","text":""}`), ErrInvalid},
		"out of order":               {file(`{"path":"/a","op":"read","text":""}`), ErrInvalid},
		"two values in a line":       {file(`{"path":"/sys/gone","op":"read","text":""} {}`), ErrInvalid},
		"an empty line":              {file(``), ErrInvalid},
		"a bad first answer":         {file(`{"path":"/sys/gone","op":"read","text":"","first":{"kind":"file"}}`), ErrInvalid},
		"file and answer":            {file(`{"path":"/sys/gone","op":"read","part":"nvml","text":""}`), ErrInvalid},
		"a file after answers":       {answer(`{"path":"/x","op":"read","text":""}`), ErrInvalid},
		"an unknown part":            {answer(`{"part":"zz","ask":"x","value":1}`), ErrInvalid},
		"an answer with a kind":      {answer(`{"part":"nvml","ask":"x","value":1,"kind":"file"}`), ErrInvalid},
		"no answer":                  {answer(`{"part":"nvml","ask":"x"}`), ErrInvalid},
		"a return and a value":       {answer(`{"part":"nvml","ask":"x","return":3,"value":1}`), ErrInvalid},
		"a return of another part":   {answer(`{"part":"netlink","ask":"x","return":3}`), ErrInvalid},
		"fewer lines":                {replaceLine(gone, ""), ErrInvalid},
		"more lines":                 {sampleText + "{}\n", ErrInvalid},
		"more lines, compressed":     {string(compressed(t, sampleText+"\n")), ErrInvalid},
		"something after gzip":       {string(compressed(t, sampleText)) + "x", ErrInvalid},
		"gzip after gzip":            {string(compressed(t, sampleText)) + string(compressed(t, sampleText)), ErrInvalid},
		"huge line":                  {file(`{"path":"/sys/gone","op":"read","text":"` + strings.Repeat("a", MaxLine) + `"}`), ErrTooLarge},
		"endless first line":         {strings.Repeat("a", MaxLine+1), ErrForeign},
		"deep JSON":                  {answer(`{"part":"nvml","ask":"x","value":` + strings.Repeat("[", 1<<20)), ErrInvalid},
		"half a line of another one": {sampleText[:len(sampleText)-20], ErrTruncated},
	} {
		recording, err := Read(strings.NewReader(c.text))
		if !errors.Is(err, c.want) || recording != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err != nil && (len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\n\x00")) {
			t.Errorf("%s: %q", name, err)
		}
	}
}

// TestChecksum: a recording whose bytes changed is refused.
func TestChecksum(t *testing.T) {
	whole := compressed(t, sampleText)
	whole[len(whole)-6] ^= 1
	if _, err := Read(bytes.NewReader(whole)); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
}

// repeat is a reader of a text over and over.
type repeat struct {
	begin, text string
	at          int
}

func (r *repeat) Read(to []byte) (int, error) {
	if r.begin != "" {
		n := copy(to, r.begin)
		r.begin = r.begin[n:]
		return n, nil
	}
	n := copy(to, r.text[r.at:])
	r.at = (r.at + n) % len(r.text)
	return n, nil
}

// numbered is a reader of lines that are all different.
type numbered struct {
	begin  string
	format string
	n      int
	rest   []byte
}

func (r *numbered) Read(to []byte) (int, error) {
	if r.begin != "" {
		r.rest, r.begin = []byte(r.begin), ""
	}
	if len(r.rest) == 0 {
		r.rest = fmt.Appendf(nil, r.format, r.n)
		r.n++
	}
	n := copy(to, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// bomb is the first megabytes of an endless input, compressed.
func bomb(t testing.TB, endless io.Reader, size int64) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.CopyN(w, endless, size); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestBombs: inputs that are small and become large, or have no end, end with an
// error and within bounded memory.
func TestBombs(t *testing.T) {
	header, _, _ := strings.Cut(sampleText, "\n")
	header += "\n"
	var names strings.Builder
	names.WriteString(`{"path":"/%08d","op":"list","names":["0"`)
	for i := range 400_000 {
		fmt.Fprintf(&names, `,"%x"`, 0x1000000+i)
	}
	names.WriteString("]}\n")
	var parts strings.Builder
	parts.WriteString(`{"path":"/%08d","op":"read","parts":[{"at":0,"hex":"00"}`)
	for i := range 150_000 {
		fmt.Fprintf(&parts, `,{"at":%d,"hex":"00"}`, 2*i+2)
	}
	parts.WriteString("]}\n")
	const most = 300 << 20 // of memory
	for name, from := range map[string]io.Reader{
		"zeros":               bomb(t, &repeat{text: strings.Repeat("\x00", 1<<16)}, 1<<26),
		"zeros after a line":  bomb(t, &repeat{begin: header, text: strings.Repeat("\x00", 1<<16)}, 1<<26),
		"empty lines":         bomb(t, &repeat{begin: header, text: strings.Repeat("\n", 1<<16)}, 1<<26),
		"endless text":        &repeat{begin: header, text: strings.Repeat("a", 1<<16)},
		"short lines":         &numbered{begin: header, format: `{"path":"/%08d","op":"stat","kind":"dir"}` + "\n"},
		"lines of both kinds": &numbered{begin: header, format: `{"path":"/%08d","op":"read","text":"a","first":{"text":"b"}}` + "\n"},
		"names":               &numbered{begin: header, format: names.String()},
		"parts":               &numbered{begin: header, format: parts.String()},
	} {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		recording, err := Read(from)
		runtime.ReadMemStats(&after)
		if recording != nil || !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v", name, err)
		}
		grown := after.HeapSys - before.HeapSys
		if after.HeapSys > before.HeapSys && grown > most {
			t.Errorf("%s: %d MiB of memory", name, grown>>20)
		}
		t.Logf("%s: %d MiB more, %d MiB allocated in all: %.100v", name, int64(after.HeapSys-before.HeapSys)>>20, (after.TotalAlloc-before.TotalAlloc)>>20, err)
	}
}

// TestWriteRefuses: nothing is written that cannot be read.
func TestWriteRefuses(t *testing.T) {
	text := func(size int) FileAnswer {
		return FileAnswer{Data: []Segment{{Bytes: bytes.Repeat([]byte("a"), size)}}, Size: int64(size)}
	}
	long := sample()
	long.Files[2].Last = text(MaxLine)
	large := sample()
	for i := range 10 {
		large.Files = append(large.Files, File{Path: fmt.Sprintf("/sys/z%d", i), Op: OpRead, Last: text(MaxLine - 100)})
	}
	disorder := sample()
	disorder.Files[0], disorder.Files[1] = disorder.Files[1], disorder.Files[0]
	relative := sample()
	relative.Files[0].Path = "x"
	for name, r := range map[string]*Recording{"long": long, "large": large, "disorder": disorder, "relative": relative} {
		if err := r.Write(io.Discard); !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzRead: what is read can be written and read again as the same, and be
// played; anything else is an error.
func FuzzRead(f *testing.F) {
	f.Add([]byte(sampleText))
	f.Add(compressed(f, sampleText))
	for _, line := range strings.SplitAfter(sampleText, "\n") {
		header, _, _ := strings.Cut(sampleText, "\n")
		f.Add([]byte(header + "\n" + line + `{"lines":1}` + "\n"))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		recording, err := Read(bytes.NewReader(input))
		if err != nil {
			if recording != nil {
				t.Error("a recording and an error")
			}
			return
		}
		var b, c bytes.Buffer
		if err := recording.WriteText(&b); err != nil {
			t.Fatalf("%v", err)
		}
		read, err := Read(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if err := read.WriteText(&c); err != nil || !bytes.Equal(b.Bytes(), c.Bytes()) {
			t.Fatalf("%v: %s\nbecomes %s", err, b.String(), c.String())
		}
		player := Play(recording)
		player.Close() // nothing hangs
		playAll(player, recording)
	})
}

// playAll asks a player for everything in a recording, and more.
func playAll(player *Player, recording *Recording) {
	f := player.Files()
	for i := range recording.Files {
		path := recording.Files[i].Path
		_, _ = f.ReadAt(path, make([]byte, 16), 0)
		_, _ = f.ReadAt(path+"/x", make([]byte, 16), 8)
		_, _ = f.ReadLines(path, 1<<16, func([]byte) bool { return true })
		_, _ = f.ReadDir(path)
		_, _ = f.Readlink(path)
		_, _ = f.Stat(path + "/../y")
		_, _ = f.Lstat(path)
		_ = f.Access(path)
		_, _ = f.EvalSymlinks(path)
	}
	if dial := player.Netlink(); dial != nil {
		if n, err := dial(); err == nil {
			_, _ = n.Devices()
			_, _ = n.Port(0, 1)
			_, _ = n.Counters(0, 1)
			_, _ = n.OptionalCounters(0, 1)
			_, _ = n.Resources(0)
			_, _ = n.Contexts(0)
			_, _ = n.Memory(0)
		}
	}
	kernel := player.Kernel()()
	_, _ = kernel.Index("eth0")
	_, _ = kernel.StatNames("eth0", 3)
	_ = kernel.Stats("eth0", make([]uint64, 3))
	_, _ = kernel.DCB("eth0")
	if conn, err := player.Devlink()(); err == nil {
		_, _ = conn.Reporters(time.Time{})
	}
	_ = player.Monitor()
	if library, err := player.NVML()(""); err == nil {
		_ = library.Init()
		if device, ret := library.DeviceGetHandleByIndex(0); ret == 0 {
			_, _ = device.GetPciInfo()
			_, _ = device.GetGpuFabricInfoV3()
		}
	}
	_ = player.Unrecorded()
}
