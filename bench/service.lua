-- Requests for wrk: the paths of the file $PATHS by chance, or with $MARKERS the creation of one marker after the other.
local paths, markers, number = {}, os.getenv("MARKERS"), 0
if markers == nil then
  for line in io.lines(os.getenv("PATHS")) do paths[#paths + 1] = line end
end
local headers = {["Accept-Encoding"] = "gzip,deflate"}

function init(_)
  math.randomseed(1)
  wrk.headers["Accept-Encoding"] = headers["Accept-Encoding"]
end

function request()
  if markers == nil then return wrk.format("GET", paths[math.random(#paths)], headers) end
  number = number + 1
  return wrk.format("POST", markers .. number .. "_0-1-1_20270101000000000.parquet.marker.CREATE", headers)
end

function done(summary, latency, _)
  local wrong = summary.errors
  io.write(string.format('{"rps": %.1f, "p50_ms": %.3f, "p95_ms": %.3f, "errors": %d}\n',
    summary.requests / summary.duration * 1e6, latency:percentile(50) / 1000, latency:percentile(95) / 1000,
    wrong.status + wrong.connect + wrong.read + wrong.write + wrong.timeout))
end
