package process

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// In the place of a test, a job: a process that maps files, limits itself and waits
// to be told to end.
const (
	jobMaps  = "GDR_TEST_JOB_MAPS"
	jobLimit = 64 << 10
)

func TestMain(m *testing.M) {
	if files, is := os.LookupEnv(jobMaps); is {
		if err := job(files); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func job(files string) error {
	for _, path := range strings.Fields(files) {
		file, err := os.Open(filepath.Clean(path))
		if err != nil {
			return err
		}
		if _, err := syscall.Mmap(int(file.Fd()), 0, 4096, syscall.PROT_READ, syscall.MAP_PRIVATE); err != nil {
			return err
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: jobLimit, Max: jobLimit}); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err := bufio.NewReader(os.Stdin).ReadString('\n') // until the test ends
	_ = err
	return nil
}

// startJob starts a job with an environment of its own, and mapped files of these
// names. It returns its id.
func startJob(t *testing.T, environment []string, libraries ...string) int {
	t.Helper()
	dir := t.TempDir()
	var paths []string
	for _, name := range libraries {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(self)
	command.Env = append(append([]string{}, environment...), jobMaps+"="+strings.Join(paths, " "))
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = command.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the job says %q, %v", line, err)
	}
	return command.Process.Pid
}
