package edge

import (
	"bytes"
	"errors"
)

// lines checks how the lines of a connection's requests end and begin.
// fasthttp takes LF for CRLF in most places and waits for a CRLF in others, and
// it joins folded lines; whatever stands in front may see other requests in the
// same bytes. RFC 9112 (2.2, 5.2) has both refused.
//
// Invariant: every byte that comes is of a head, for bodies are never read. So
// this needs to know of nothing but lines.
type lines struct {
	last     byte // before the present bytes
	encoding bool // a line may have been a Transfer-Encoding
}

var errLine = errors.New("a line that ends in LF alone or is folded")

// good returns how many bytes of p are good: all, or those before an LF
// without CR, or before the blank that folds a line.
func (l *lines) good(p []byte) int {
	for i := 0; ; {
		if l.last == '\n' && i < len(p) {
			switch p[i] {
			case ' ', '\t':
				return i
			case 't', 'T': // the fourth letter, as far as it is here, tells it from traceparent
				l.encoding = l.encoding || i+3 >= len(p) || p[i+3]|0x20 == 'n'
			}
		}
		end := bytes.IndexByte(p[i:], '\n')
		if end < 0 {
			break
		}
		if i += end; i > 0 {
			l.last = p[i-1]
		}
		if l.last != '\r' {
			return i
		}
		l.last = '\n'
		i++
	}
	if len(p) > 0 {
		l.last = p[len(p)-1]
	}
	return len(p)
}
