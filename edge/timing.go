package edge

import (
	"strconv"
	"time"
)

// addTiming tells, where that is on, how long the parts of the exchange took:
// Server-Timing of W3C, in milliseconds.
func (s *Server) addTiming(a *answer, x *exchange) {
	if !s.serverTiming {
		return
	}
	begin := "Server-Timing: "
	for _, part := range x.timings() {
		if part.span.Began.IsZero() {
			continue
		}
		a.lines = append(append(append(a.lines, begin...), part.name...), ";dur="...)
		a.lines = strconv.AppendFloat(a.lines, float64(part.span.Took)/float64(time.Millisecond), 'f', 3, 64)
		begin = ", "
	}
	if begin == ", " {
		a.lines = append(a.lines, crlf...)
	}
}
