package node

import (
	"strings"
	"testing"
)

func TestNodeNamesAreOneLine(t *testing.T) {
	for name, ok := range map[string]bool{"": true, "köln-1:9090": true, "a\nb": false, "a\tb": false, strings.Repeat("x", 256): false} {
		if err := (&Flags{NodeID: name}).Validate(); strings.Contains(err.Error(), "--node-id") == ok { // other flags are missing
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestByteSizes(t *testing.T) {
	for text, want := range map[string]ByteSize{"1": 1, "1B": 1, "2KiB": 2048, "1.5MiB": 1572864, "1 GiB": 1 << 30, "3MB": 3e6, "10kB": 1e4} {
		var b ByteSize
		if err := b.UnmarshalText([]byte(text)); err != nil || b != want {
			t.Errorf("%s: %d, %v", text, b, err)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1XB", "NaN", "1e30", "1 2"} {
		var b ByteSize
		if err := b.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: %d", text, b)
		}
	}
}
