package diagnosis

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// readmeRows are the rows of the README's table of rules.
func readmeRows() string {
	var b strings.Builder
	for _, r := range Rules() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.ID, r.Severity, r.Title)
	}
	return b.String()
}

// TestReadmeRules: the README's table of rules is that of the program.
func TestReadmeRules(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := readmeRows(); !strings.Contains(string(readme), want) {
		t.Errorf("README's table of rules is not:\n%s", want)
	}
}
