package edge

import (
	"io"
	"net"
	"time"
)

// lingerTimeout is how long a refused client may go on sending.
const lingerTimeout = 500 * time.Millisecond

// linger reads and drops what a refused client is still sending. To close a
// connection with unread bytes resets it, and a reset can overtake the answer.
func linger(c net.Conn) {
	half, ok := c.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(lingerTimeout)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c, refusedBody)
}
