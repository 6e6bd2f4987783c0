"""What a process tells about itself: metrics, health over plain HTTP, the longest turn of its event loop.

Knows: counters, histograms, the Prometheus text format. Must not know: requests' contents, pools' policies, ext_proc.

`instruments` counts; `metrics` names what is counted and keeps one request's account; `exposition` makes plain families
and text of a registry; `admin` serves them; `turns` watches the event loop.
"""
