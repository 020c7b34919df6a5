package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// buildModules compiles each test module for the kernel, unless the cache has
// it already.
func buildModules(ctx context.Context, cache string, kernel kernel, specs []moduleSpec) ([]builtModule, error) {
	var built []builtModule
	for _, spec := range specs {
		file, err := buildModule(ctx, cache, kernel, spec.dir)
		if err != nil {
			return nil, fmt.Errorf("module %s: %w", spec.dir, err)
		}
		built = append(built, builtModule{file: file, params: spec.params})
	}
	return built, nil
}

// buildModule returns the module file built from the sources in dir. The cache
// is keyed by their contents and the kernel's: a change of either builds anew.
func buildModule(ctx context.Context, cache string, kernel kernel, dir string) (string, error) {
	key, err := moduleKey(kernel, dir)
	if err != nil {
		return "", err
	}
	target := filepath.Join(cache, "modules", key)
	fill := func(ctx context.Context, part string) error { return compileModule(ctx, kernel, dir, part) }
	if err := cached(ctx, target, fill); err != nil {
		return "", err
	}
	return onlyModule(target)
}

// moduleKey hashes the sources and the kernel's symbol versions.
func moduleKey(kernel kernel, dir string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, kernel.release)
	if err := hashFile(sum, filepath.Join(kernel.headersDir(), "Module.symvers"), "symvers"); err != nil {
		return "", err
	}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return hashFile(sum, path, name)
	})
	if err != nil {
		return "", fmt.Errorf("sources: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil)[:16]), nil
}

// hashFile adds a file's name, length and contents.
func hashFile(sum hash.Hash, path, name string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	fmt.Fprintf(sum, "%q %d\n", name, info.Size())
	_, err = io.Copy(sum, file)
	return err
}

// compileModule builds a copy of the sources, so that nothing is written into
// the repository, and leaves the module alone in part.
func compileModule(ctx context.Context, kernel kernel, dir, part string) error {
	work := filepath.Join(part, "build")
	if err := os.CopyFS(work, os.DirFS(dir)); err != nil {
		return fmt.Errorf("copy sources: %w", err)
	}
	if _, err := findProgram("gcc"); err != nil {
		return err
	}
	// Without type information, which would need pahole and the kernel's own.
	args := []string{"-C", kernel.headersDir(), "M=" + work, "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"}
	if _, err := runProgram(ctx, work, "make", args...); err != nil {
		return fmt.Errorf("build (needs the Debian packages gcc, make and libelf1): %w", err)
	}
	file, err := onlyModule(work)
	if err != nil {
		return err
	}
	if err := os.Rename(file, filepath.Join(part, filepath.Base(file))); err != nil {
		return err
	}
	return os.RemoveAll(work)
}

// onlyModule returns the one module file in dir.
func onlyModule(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	if err != nil {
		return "", err
	}
	if len(files) != 1 {
		return "", fmt.Errorf("the sources make %d modules, not one", len(files))
	}
	return files[0], nil
}
