package sysread

import "bytes"

// ParseCounter reads the decimal unsigned 64-bit number of a counter file.
func ParseCounter(text []byte) (uint64, error) {
	if len(text) == 0 || len(text) > 20 {
		return 0, counterError(text)
	}
	var value uint64
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, counterError(text)
		}
		digit := uint64(c - '0')
		if value > (1<<64-1-digit)/10 {
			return 0, counterError(text)
		}
		value = value*10 + digit
	}
	return value, nil
}

func counterError(text []byte) error {
	if bytes.HasPrefix(text, []byte("N/A")) {
		return ErrNoPMA
	}
	return Invalid(string(text))
}
