package edge

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strconv"

	"github.com/valyala/fasthttp"

	"listedge/metrics"
)

// writeProblem puts an error answer onto the wire, and into the log if it is
// our fault.
func (s *Server) writeProblem(x *exchange, f failure) {
	a := x.conn.newAnswer(f.problem.status)
	a.lines = append(a.lines, "Cache-Control: no-store\r\n"+noSniff...)
	switch f.problem.status {
	case fasthttp.StatusTooManyRequests, fasthttp.StatusServiceUnavailable: // what passes by itself
		a.lines = append(strconv.AppendInt(append(a.lines, "Retry-After: "...), max(retrySoon, f.retry), 10), crlf...)
	}
	if f.problem == wrongMethod {
		a.lines = append(a.lines, "Allow: GET, HEAD\r\n"...)
	}
	s.addLimits(a, x)
	s.addTiming(a, x)
	a.add(headerRequestID, x.id)
	a.body(problemBody(nil, f.problem, &f.faults, x.id))
	x.outcome, x.failed = metrics.OutcomeError, f
	if f.problem.status == fasthttp.StatusTooManyRequests {
		x.outcome = metrics.OutcomeLimited
	}
	if f.problem.ours() {
		if tell, untold := f.problem.log.tell(x.now, f.problem == internalError); tell {
			s.logger.LogAttrs(context.Background(), slog.LevelError, "request failed",
				slog.String("requestId", string(x.id)), slog.String("route", x.route.String()),
				slog.Int("status", f.problem.status), slog.Any("error", f.cause), slog.Uint64("alike", untold))
		}
	}
}

// problemBody appends the body of an error answer.
func problemBody(dst []byte, p *problem, wrong *faults, id []byte) []byte {
	type inner struct {
		Code    string  `json:"code"`
		Message string  `json:"message"`
		Details details `json:"details,omitempty"`
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(struct {
		Error     inner  `json:"error"`
		RequestID string `json:"requestId"`
	}{inner{p.code, wrong.message(p), wrong.details}, string(id)}); err != nil {
		panic("BUG: " + err.Error()) // strings always encode
	}
	return append(dst, bytes.TrimSuffix(out.Bytes(), []byte{'\n'})...)
}
