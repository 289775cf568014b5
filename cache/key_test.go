package cache_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"listedge/cache"
)

// parseKey reverses AppendKey, so different parts give different keys.
func parseKey(key []byte) (workspace [16]byte, parts [][]byte, ok bool) {
	if len(key) < len(workspace) {
		return workspace, nil, false
	}
	rest := key[copy(workspace[:], key):]
	for len(rest) > 0 {
		n, width := binary.Uvarint(rest)
		if width <= 0 || n > uint64(len(rest)-width) {
			return workspace, nil, false
		}
		rest = rest[width:]
		parts, rest = append(parts, rest[:n]), rest[n:]
	}
	return workspace, parts, true
}

func sameParts(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

func checkRoundTrip(t *testing.T, workspace [16]byte, parts [][]byte) []byte {
	t.Helper()
	key := cache.AppendKey([]byte("before"), workspace, parts...)
	key, found := bytes.CutPrefix(key, []byte("before"))
	if !found {
		t.Fatal("what was there before is lost")
	}
	w, p, ok := parseKey(key)
	if !ok || w != workspace || !sameParts(p, parts) {
		t.Fatalf("%x %q became %x, which reads %x %q", workspace, parts, key, w, p)
	}
	return key
}

func FuzzAppendKey(f *testing.F) {
	f.Add([]byte("w"), []byte("w"), []byte("ab"), []byte("c"), []byte("a"), []byte("bc"), byte(2), byte(2))
	f.Add([]byte{1}, []byte{2}, []byte(""), []byte("\x00"), []byte("\x00"), []byte(""), byte(2), byte(2))
	f.Add([]byte{}, []byte{0}, []byte("\x01a"), []byte{}, []byte{1}, []byte("a"), byte(1), byte(2))
	f.Add([]byte{}, []byte{}, make([]byte, 127), make([]byte, 128), make([]byte, 300), []byte{0xac, 2}, byte(2), byte(0))
	f.Fuzz(func(t *testing.T, wa, wb, a1, a2, b1, b2 []byte, na, nb byte) {
		var workspaceA, workspaceB [16]byte
		copy(workspaceA[:], wa)
		copy(workspaceB[:], wb)
		a, b := [][]byte{a1, a2}[:na%3], [][]byte{b1, b2}[:nb%3]
		keyA, keyB := checkRoundTrip(t, workspaceA, a), checkRoundTrip(t, workspaceB, b)
		if same := workspaceA == workspaceB && sameParts(a, b); same != bytes.Equal(keyA, keyB) {
			t.Fatalf("%x %q and %x %q: same %v, keys %x and %x", workspaceA, a, workspaceB, b, same, keyA, keyB)
		}
	})
}
