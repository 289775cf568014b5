package cache

import "encoding/binary"

// AppendKey appends the key of a page: the workspace, then each part with its
// length in front. The encoding is injective for any parts: two different lists of
// parts of one workspace have different keys, and so has the same list in two
// workspaces. Memory, Redis and collapsing use the same key.
func AppendKey(dst []byte, workspace [16]byte, parts ...[]byte) []byte {
	dst = append(dst, workspace[:]...)
	for _, part := range parts {
		dst = binary.AppendUvarint(dst, uint64(len(part)))
		dst = append(dst, part...)
	}
	return dst
}
