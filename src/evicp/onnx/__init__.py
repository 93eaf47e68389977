"""ONNX: the calibrated set predictor appended to a classifier's own graph.

The head is built from standard operators in double precision, for a dynamic batch, so that any ONNX server can run it:
Abs Add And Cast Clip Concat CumSum Div Equal Exp GatherElements Greater LessOrEqual Log Max Mul Neg
ReduceSum Relu Reshape Round ScatterElements Slice Sub TopK Where. It needs opset 16 or newer.
"""

from evicp.onnx.exporter import OLDEST_OPSET, OUTPUTS, export

__all__ = ["OLDEST_OPSET", "OUTPUTS", "export"]
