package nldev

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"

	"gdr_exporter/rdma/nlattr"
)

// attributes calls f for each attribute in data. Those after a malformed one
// are lost, and an error says so.
func attributes(data []byte, f func(kind uint16, value []byte)) error {
	decoder, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	for decoder.Next() {
		f(decoder.Type(), decoder.Bytes())
	}
	if err := decoder.Err(); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

// nested calls f with the content of each entry of a table.
func nested(table []byte, entry uint16, f func(content []byte) error) error {
	var failed error
	err := attributes(table, func(kind uint16, value []byte) {
		if kind == entry && failed == nil {
			failed = f(value)
		}
	})
	if failed != nil {
		return failed
	}
	return err
}

// guid writes a GUID as sysfs does. The kernel sends it as a number in host byte
// order, whose hexadecimal digits are those of sysfs; zero is none.
func guid(value []byte) string {
	n, ok := nlattr.Number(value)
	if !ok || n == 0 {
		return ""
	}
	return fmt.Sprintf("%04x:%04x:%04x:%04x", n>>48, n>>32&0xffff, n>>16&0xffff, n&0xffff)
}

func u32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
