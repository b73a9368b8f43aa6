terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "name" {
  description = "Name of the bucket, unique in AWS."
  type        = string
}

variable "kms_key_arn" {
  description = "Key that encrypts the objects; empty: a key of S3."
  type        = string
  default     = ""
}

variable "tags" {
  description = "Tags of all resources."
  type        = map(string)
  default     = {}
}

resource "aws_s3_bucket" "checkpoints" {
  bucket = var.name
  tags   = var.tags
}

resource "aws_s3_bucket_public_access_block" "checkpoints" {
  bucket                  = aws_s3_bucket.checkpoints.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "checkpoints" {
  bucket = aws_s3_bucket.checkpoints.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == "" ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn == "" ? null : var.kms_key_arn
    }
  }
}

# A killed upload leaves parts that no listing shows.
resource "aws_s3_bucket_lifecycle_configuration" "checkpoints" {
  bucket = aws_s3_bucket.checkpoints.id

  rule {
    id     = "incomplete-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 2
    }
  }
}

data "aws_iam_policy_document" "tls" {
  statement {
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.checkpoints.arn, "${aws_s3_bucket.checkpoints.arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_s3_bucket_policy" "tls" {
  bucket = aws_s3_bucket.checkpoints.id
  policy = data.aws_iam_policy_document.tls.json
}

data "aws_iam_policy_document" "jobs" {
  statement {
    actions   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    resources = ["${aws_s3_bucket.checkpoints.arn}/*"]
  }

  statement {
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.checkpoints.arn]
  }
}

resource "aws_iam_policy" "jobs" {
  name_prefix = "phalanx-jobs-"
  policy      = data.aws_iam_policy_document.jobs.json
  tags        = var.tags
}

output "store" {
  description = "Value of `checkpoint.store` in the specs of jobs."
  value       = "s3://${aws_s3_bucket.checkpoints.bucket}"
}

output "policy_arn" {
  description = "Policy for the role of the jobs' service account."
  value       = aws_iam_policy.jobs.arn
}
