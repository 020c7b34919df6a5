package collector

import (
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func TestLint(t *testing.T) {
	files, err := goldenFiles()
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
			t.Errorf("%s: %s: %s", file, problem.Metric, problem.Text)
		}
		if err := page.Close(); err != nil {
			t.Error(err)
		}
	}
}
