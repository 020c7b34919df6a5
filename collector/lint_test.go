package collector

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// lintExceptions are names that promlint objects to and that stay.
var lintExceptions = map[string]string{
	// The name says that a counter is saturated: its type is another matter.
	"gdr_rdma_port_counter_saturated": "metric name should not include type 'counter'",
}

func TestLint(t *testing.T) {
	files, err := filepath.Glob("testdata/*.metrics")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		page, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.New(page).Lint()
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, problem := range problems {
			if lintExceptions[problem.Metric] != problem.Text {
				t.Errorf("%s: %s: %s", file, problem.Metric, problem.Text)
			}
		}
		if err := page.Close(); err != nil {
			t.Error(err)
		}
	}
}
