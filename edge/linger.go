package edge

import (
	"io"
	"time"
)

// lingerTimeout is how long a refused client may go on sending.
const lingerTimeout = 500 * time.Millisecond

// linger reads and drops what a refused client is still sending. To close a
// connection with unread bytes resets it, and a reset can overtake the answer.
func (c *conn) linger() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.Conn.SetReadDeadline(time.Now().Add(lingerTimeout)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c.Conn, refusedBody)
}
