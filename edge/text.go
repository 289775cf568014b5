package edge

import "bytes"

func hasPrefix(b []byte, prefix string) bool {
	return len(b) >= len(prefix) && string(b[:len(prefix)]) == prefix
}

// cutLast cuts a comma-separated list before its last element.
func cutLast(list []byte) (rest, last []byte) {
	if i := bytes.LastIndexByte(list, ','); i >= 0 {
		return list[:i], bytes.TrimSpace(list[i+1:])
	}
	return nil, bytes.TrimSpace(list)
}
