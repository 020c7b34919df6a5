// Package container holds what is tested of the Dockerfile on every run of the tests.
// deploy/container/build-here and try build and start the image for real.
package container

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const repository = "../.."

func text(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestDockerfile: the base images are arguments, the user is a number, libraries come
// from the distribution, and nothing of the compiler is in the image.
func TestDockerfile(t *testing.T) {
	file := text(t, "Dockerfile")
	stages := regexp.MustCompile(`(?m)^FROM (\S+)( AS (\S+))?$`).FindAllStringSubmatch(file, -1)
	if len(stages) != 2 || stages[0][1] != "${BUILD_IMAGE}" || stages[1][1] != "${BASE_IMAGE}" {
		t.Fatalf("stages %q", stages)
	}
	build, image, _ := strings.Cut(file, stages[1][0])
	for _, want := range []string{
		"libibverbs1 ibverbs-providers", "USER 65532:65532", "EXPOSE 10479", `ENTRYPOINT ["/usr/bin/gdr_exporter"]`, "org.opencontainers.image.licenses",
		"COPY --from=" + stages[0][3] + " /gdr_exporter /usr/bin/gdr_exporter", "NVIDIA_DRIVER_CAPABILITIES=utility,compute",
	} {
		if !strings.Contains(image, want) {
			t.Errorf("the image has no %s", want)
		}
	}
	if strings.Contains(image, "gcc") || strings.Contains(image, "HEALTHCHECK") {
		t.Error("the image has a compiler, or a health check that Kubernetes ignores")
	}
	for _, want := range []string{"-z,lazy", "-trimpath", "CGO_ENABLED=1", "common/version"} {
		if !strings.Contains(build, want) {
			t.Errorf("the build has no %s", want)
		}
	}
	if !strings.Contains(text(t, "Makefile"), "-z,lazy") {
		t.Error("the Makefile does not bind lazily any more")
	}
}

// TestContext: what .dockerignore lets through has every package of the program, and no
// history or output.
func TestContext(t *testing.T) {
	allowed := map[string]bool{}
	for line := range strings.Lines(text(t, ".dockerignore")) {
		if name, is := strings.CutPrefix(strings.TrimSpace(line), "!"); is {
			allowed[name] = true
			if _, err := os.Stat(filepath.Join(repository, name)); err != nil && name != "dashboards" {
				t.Error(err)
			}
		}
	}
	if allowed[".git"] || allowed["bin"] || allowed["dist"] || !strings.Contains(text(t, ".dockerignore"), "\n*\n") {
		t.Errorf("too much: %v", allowed)
	}
	command := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./cmd/gdr_exporter")
	command.Dir = repository
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	own := 0
	for line := range strings.Lines(string(output)) {
		if path, is := strings.CutPrefix(strings.TrimSpace(line), "gdr_exporter/"); is {
			own++
			if top, _, _ := strings.Cut(path, "/"); !allowed[top] {
				t.Errorf("package %s is left out", path)
			}
		}
	}
	if own < 20 {
		t.Errorf("%d packages", own)
	}
}

// TestScripts: the shell understands what only the long tests run.
func TestScripts(t *testing.T) {
	for _, script := range []string{"deploy/container/build-here", "deploy/container/try", "deploy/packages/build", "deploy/packages/try", "deploy/release/snapshot", "deploy/debian-root"} {
		path := filepath.Join(repository, script)
		if output, err := exec.CommandContext(t.Context(), "bash", "-n", path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", script, err, output)
		}
		if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s cannot be executed: %v", script, err)
		}
	}
}
