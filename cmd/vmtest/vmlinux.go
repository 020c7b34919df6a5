package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Offsets of the Linux boot protocol's header (Documentation/arch/x86/boot.rst).
const (
	setupSectorsOffset  = 0x1f1
	headerMagicOffset   = 0x202
	payloadOffsetOffset = 0x248
	payloadLengthOffset = 0x24c
	headerEnd           = 0x250
	sectorSize          = 512
)

// decompressors are the programs for the formats Debian's kernels come in, by
// the first bytes of the data.
var decompressors = []struct {
	magic   string
	program string
}{
	{"\xfd7zXZ\x00", "xz"},
	{"\x28\xb5\x2f\xfd", "zstd"},
}

// extractVmlinux writes the uncompressed kernel beside the compressed one. QEMU
// starts it directly (PVH), which saves the seconds that an emulated CPU takes
// to unpack it: about a third of the whole boot.
func extractVmlinux(ctx context.Context, k kernel) error {
	image, err := os.ReadFile(k.compressedImage())
	if err != nil {
		return fmt.Errorf("kernel image: %w", err)
	}
	payload, err := kernelPayload(image)
	if err != nil {
		return fmt.Errorf("kernel image: %w", err)
	}
	vmlinux, err := decompress(ctx, filepath.Dir(k.compressedImage()), payload)
	if err != nil {
		return fmt.Errorf("kernel image: %w", err)
	}
	if _, err := elf.NewFile(bytes.NewReader(vmlinux)); err != nil {
		return fmt.Errorf("kernel image: %w", err)
	}
	return os.WriteFile(k.plainImage(), vmlinux, 0o644)
}

// kernelPayload finds the compressed kernel within a bzImage. The build appends
// the uncompressed size in four bytes, which are no part of the stream.
func kernelPayload(image []byte) ([]byte, error) {
	if len(image) < headerEnd || string(image[headerMagicOffset:headerMagicOffset+4]) != "HdrS" {
		return nil, errors.New("not a bzImage")
	}
	sectors := uint64(image[setupSectorsOffset])
	if sectors == 0 {
		sectors = 4
	}
	start := (sectors+1)*sectorSize + uint64(binary.LittleEndian.Uint32(image[payloadOffsetOffset:]))
	length := uint64(binary.LittleEndian.Uint32(image[payloadLengthOffset:]))
	if length < 4 || start+length > uint64(len(image)) {
		return nil, errors.New("bzImage header points outside the file")
	}
	return image[start : start+length-4], nil
}

// decompress unpacks data with the machine's own programs, through a scratch
// file in dir.
func decompress(ctx context.Context, dir string, data []byte) ([]byte, error) {
	for _, d := range decompressors {
		if !bytes.HasPrefix(data, []byte(d.magic)) {
			continue
		}
		scratch := filepath.Join(dir, "payload")
		if err := os.WriteFile(scratch, data, 0o644); err != nil {
			return nil, err
		}
		text, err := runProgram(ctx, "", d.program, "-dc", scratch)
		return []byte(text), errors.Join(err, os.Remove(scratch))
	}
	return nil, errors.New("unknown compression")
}
